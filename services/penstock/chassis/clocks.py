"""Clocks: Unix time that never steps, and time that excludes the stalls of this process."""

import math
import time


class WallMonotonicClock:
    """Unix time in seconds that never steps: the system's time at the start, then monotonic.

    It differs from the clock of any other process by an unknown offset, so that no rule compares the two, unless both
    are shifted to the time of a database.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset

    def shift(self, seconds: float) -> None:
        """Put the clock forward, or back if negative. Once, before anything depends on it."""
        self._offset += seconds

    def at(self, monotonic: float) -> float:
        """Return the time of a reading of `time.monotonic`, which all processes of a host share."""
        return monotonic + self._offset


class StallFreeClock:
    """A clock that excludes our own stalls, so that a stall is not mistaken for a silent peer.

    Between two readings it advances by `max_gap_s` at most. While timeouts depend on it, it must be read at least twice
    per `max_gap_s`, so that a reading which is slightly late loses no time. An infinite gap excludes nothing.
    """

    def __init__(self, max_gap_s: float = math.inf) -> None:
        self._max_gap_s = max_gap_s
        self._last_read_at = math.inf
        self._stalled_s = 0.0

    def __repr__(self) -> str:
        return f"<StallFreeClock, {self._stalled_s:.3f} s stalled>"

    def at(self, now: float) -> float:
        """Return `now` less all stalls so far, in s."""
        self._stalled_s += max(0.0, now - self._last_read_at - self._max_gap_s)
        self._last_read_at = now
        return now - self._stalled_s
