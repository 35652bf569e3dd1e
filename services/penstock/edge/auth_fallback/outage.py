"""Whether auth is away: its link is down, or it owes answers and says nothing."""

import math

RESPONSE_TIMEOUT_S = 30.0  # s; who speaks and still owes an answer after so long will not give it


class OutageDetector:
    """Counts from when auth could have spoken and did not.

    Until auth has first answered there is no silence: an edge that knows nobody cannot tell a stranger from the rest,
    and has them wait. `now` is to be time in which the edge itself ran, or it takes its own standstill for auth's.
    """

    def __init__(self, *, outage_after: float) -> None:
        self._outage_after = outage_after  # s
        self._has_responded = False
        self._connected_at = math.inf
        self._silent_since = math.inf  # when the present silence began; infinite: there is none
        self._outage_since = math.inf  # when the outage did: a link that comes back is no answer yet
        self._pending: dict[str, float] = {}  # asks on the present link and when they were made, oldest first

    def __repr__(self) -> str:
        return f"<Silence since {self._silent_since}, {len(self._pending)} owed>"

    @property
    def outage_at(self) -> float:
        """When auth will count as away unless it speaks."""
        return self._silent_since + self._outage_after

    @property
    def is_timing(self) -> bool:
        """Whether an outage goes on, or may have begun; its time is to be looked at until then."""
        return self._has_responded and not math.isinf(self._outage_since)

    def is_unreachable(self, now: float) -> bool:
        return self._has_responded and now >= self.outage_at

    def outage_duration(self, now: float) -> float:
        """Seconds since auth was last known to decide anything; 0 while it does."""
        return max(0.0, now - self._outage_since)

    def check(self, now: float) -> None:
        """An auth that is there while nobody asks is no outage."""
        if not self._pending and now - self._connected_at >= self._outage_after:
            self._outage_since = math.inf

    def on_connected(self, now: float) -> None:
        """A link to auth is there; what was asked before is to be asked again."""
        self._connected_at, self._silent_since = now, math.inf
        self._pending.clear()

    def on_disconnected(self, now: float, *, on_purpose: bool = False) -> None:
        """No link to auth is left; who said that it goes is away at once, and not for a moment as one that was cut."""
        self._pending.clear()
        self._connected_at = math.inf
        self._start_silence(now)
        if on_purpose:
            self._silent_since = min(self._silent_since, now - self._outage_after)

    def on_request_sent(self, request_id: str, now: float) -> None:
        if math.isinf(self._connected_at):
            return
        self.check(now)
        if not self._pending:
            self._start_silence(now)
        self._pending.setdefault(request_id, now)

    def on_response(self, now: float, request_id: str = "") -> None:
        """Auth said something; `request_id`: it answered that ask."""
        self._pending.pop(request_id, None)
        while (oldest := next(iter(self._pending), None)) and self._pending[oldest] + RESPONSE_TIMEOUT_S <= now:
            del self._pending[oldest]
        self._silent_since = now if self._pending else math.inf
        if request_id:
            self._has_responded = True
            self._outage_since = self._silent_since

    def _start_silence(self, now: float) -> None:
        self._silent_since = min(self._silent_since, now)
        self._outage_since = min(self._outage_since, now)
