"""Outage detector: auth is unreachable if its stream is down, if it does not respond while requests are pending, or if
it cannot write to its store.
"""

import math

RESPONSE_TIMEOUT_S = 30.0  # a request without a response after this time is no longer pending


class OutageDetector:
    """Measures the time since one replica of auth could have responded and did not.

    No outage is declared before auth's first response, since an edge without cached identities cannot admit anyone.
    `now` must be a clock that excludes stalls of the edge, so that a stall is not mistaken for an outage of auth.
    """

    def __init__(self, *, outage_after: float, has_responded: bool = False) -> None:
        self._outage_after = outage_after  # s
        self.has_responded = has_responded  # a replica of auth has responded to this edge
        self._responded_at = -math.inf  # latest response to a request while the store was available
        self._connected_at = math.inf
        self._silent_since = math.inf  # start of the present silence; infinite if there is none
        # Start of the present outage. A response ends it; a reconnected stream does not.
        self._outage_since = math.inf
        self.is_store_unavailable = False  # as auth says on the present stream
        self._pending: dict[str, float] = {}  # requests on the present stream by time of sending, oldest first

    def __repr__(self) -> str:
        return f"<OutageDetector silent since {self._silent_since}, {len(self._pending)} pending>"

    @property
    def outage_at(self) -> float:
        """Time at which auth counts as unreachable unless it responds."""
        return self._silent_since + self._outage_after

    @property
    def silent_since(self) -> float:
        """Start of the present silence or of the outage of the store. Infinite if auth responds as required."""
        return self._outage_since if self.is_store_unavailable else self._silent_since

    @property
    def outage_since(self) -> float:
        """Start of the present outage. Infinite if there is none."""
        return self._outage_since

    @property
    def is_timing(self) -> bool:
        """Whether an outage lasts or may have begun, so that `check` must be called regularly."""
        return self.has_responded and not math.isinf(self._outage_since)

    def is_unreachable(self, now: float) -> bool:
        return self.has_responded and (self.is_store_unavailable or now >= self.outage_at)

    def is_available_since(self, start: float, now: float) -> bool:
        """Whether auth has responded as required since `start`, or is connected for long without a pending request."""
        return self._responded_at >= start or (math.isinf(self._outage_since) and now - start >= self._outage_after)

    def outage_duration(self, now: float) -> float:
        """Return the seconds since auth last responded as required. 0 without an outage."""
        return max(0.0, now - self._outage_since)

    def check(self, now: float) -> None:
        """End an outage if auth stays connected with an available store and no request is pending."""
        if not self.is_store_unavailable and not self._pending and now - self._connected_at >= self._outage_after:
            self._outage_since = math.inf

    def on_connected(self, now: float) -> None:
        """A stream to auth is connected. Requests of the previous stream are sent again."""
        self._connected_at, self._silent_since = now, math.inf
        self.is_store_unavailable = False
        self._pending.clear()

    def on_disconnected(self, now: float, *, on_purpose: bool = False) -> None:
        """No stream to auth is left. Auth counts as unreachable at once if it ended the stream or has no store."""
        on_purpose = on_purpose or self.is_store_unavailable
        self.is_store_unavailable = False
        self._pending.clear()
        self._connected_at = math.inf
        self._start_silence(now)
        if on_purpose:
            self._silent_since = min(self._silent_since, now - self._outage_after)

    def on_store_state(self, now: float, *, is_unavailable: bool) -> None:
        """Auth cannot write to its store, and its responses do not end the outage; or it can again, and it ends."""
        if is_unavailable:
            self._outage_since = min(self._outage_since, now)
        elif self.is_store_unavailable:
            self._silent_since = self._outage_since = math.inf
            self._pending.clear()
        self.is_store_unavailable = is_unavailable

    def on_request_sent(self, request_id: str, now: float) -> None:
        if math.isinf(self._connected_at):
            return
        self.check(now)
        if not self._pending:
            self._start_silence(now)
        self._pending.setdefault(request_id, now)

    def on_request_moved(self, request_id: str) -> None:
        """A request was sent to another replica, so that no response of this one is due."""
        if self._pending.pop(request_id, None) is not None and not self._pending:
            self._silent_since = math.inf

    def on_response(self, now: float, request_id: str = "") -> None:
        """Auth sent a frame; a `request_id` names the request that it answers."""
        self._pending.pop(request_id, None)
        while (oldest := next(iter(self._pending), None)) and self._pending[oldest] + RESPONSE_TIMEOUT_S <= now:
            del self._pending[oldest]
        self._silent_since = now if self._pending else math.inf
        if request_id:
            self.has_responded = True
            if not self.is_store_unavailable:
                self._responded_at = now
                self._outage_since = self._silent_since

    def _start_silence(self, now: float) -> None:
        self._silent_since = min(self._silent_since, now)
        self._outage_since = min(self._outage_since, now)
