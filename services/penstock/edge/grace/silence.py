"""Whether auth is away: its link is down, or it owes answers and says nothing."""

import math

FORGET = 30.0  # s; who speaks and still owes an answer after so long will not give it


class Silence:
    """Counts from when auth could have spoken and did not.

    Until auth has first answered there is no silence: an edge that knows nobody cannot tell a stranger from the rest,
    and has them wait. `now` is to be time in which the edge itself ran, or it takes its own standstill for auth's.
    """

    def __init__(self, *, after: float) -> None:
        self._after = after  # s
        self._has_answered = False
        self._came_at = math.inf
        self._since = math.inf  # when the present silence began; infinite: there is none
        self._began = math.inf  # when the outage did: a link that comes back is no answer yet
        self._owed: dict[str, float] = {}  # asks on the present link and when they were made, oldest first

    def __repr__(self) -> str:
        return f"<Silence since {self._since}, {len(self._owed)} owed>"

    @property
    def due_at(self) -> float:
        """When auth will count as away unless it speaks."""
        return self._since + self._after

    @property
    def counts(self) -> bool:
        """Whether an outage goes on, or may have begun; its time is to be looked at until then."""
        return self._has_answered and not math.isinf(self._began)

    def is_away(self, now: float) -> bool:
        return self._has_answered and now >= self.due_at

    def lasted(self, now: float) -> float:
        """Seconds since auth was last known to decide anything; 0 while it does."""
        return max(0.0, now - self._began)

    def look(self, now: float) -> None:
        """An auth that is there while nobody asks is no outage."""
        if not self._owed and now - self._came_at >= self._after:
            self._began = math.inf

    def came(self, now: float) -> None:
        """A link to auth is there; what was asked before is to be asked again."""
        self._came_at, self._since = now, math.inf
        self._owed.clear()

    def went(self, now: float, *, on_purpose: bool = False) -> None:
        """No link to auth is left; who said that it goes is away at once, and not for a moment as one that was cut."""
        self._owed.clear()
        self._came_at = math.inf
        self._fall_silent(now)
        if on_purpose:
            self._since = min(self._since, now - self._after)

    def asked(self, request_id: str, now: float) -> None:
        if math.isinf(self._came_at):
            return
        self.look(now)
        if not self._owed:
            self._fall_silent(now)
        self._owed.setdefault(request_id, now)

    def heard(self, now: float, request_id: str = "") -> None:
        """Auth said something; `request_id`: it answered that ask."""
        self._owed.pop(request_id, None)
        while (oldest := next(iter(self._owed), None)) and self._owed[oldest] + FORGET <= now:
            del self._owed[oldest]
        self._since = now if self._owed else math.inf
        if request_id:
            self._has_answered = True
            self._began = self._since

    def _fall_silent(self, now: float) -> None:
        self._since = min(self._since, now)
        self._began = min(self._began, now)
