"""Time for the edge's cores."""

import math
import time
from collections.abc import Callable


class WallMonotonicClock:
    """Unix time in seconds that never goes back: read once from the system's clock, then counted on."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset


def wall_monotonic() -> Callable[[], float]:
    """Unix seconds that never step: true at the start, because buckets outlive the process, then monotonic."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


class StallFreeClock:
    """Counts what passed between two looks, up to `step`: who did not look for longer stood still, and heard nobody.

    It is to be looked at twice a step at least while it matters, so that a look which is a little late costs nothing.
    An infinite step makes it the clock that it is given.
    """

    def __init__(self, max_gap_s: float = math.inf) -> None:
        self._max_gap_s = max_gap_s  # s
        self._last_read_at = math.inf
        self._stalled_s = 0.0

    def __repr__(self) -> str:
        return f"<OwnTime, {self._stalled_s:.3f} s stood still>"

    def at(self, now: float) -> float:
        """Return the own time, in s: that of the clock of `now`, less what was stood still."""
        self._stalled_s += max(0.0, now - self._last_read_at - self._max_gap_s)
        self._last_read_at = now
        return now - self._stalled_s
