"""Window: the lines that one replica keeps in the mesh, those that run and as many that wait as start in half a second.

By Little's law, a queue of `rate * wait` tickets gives each new one that wait. More would only be shed or evicted, and
fewer would let workers be idle between two looks. Pure: `now` is in s of any clock that never steps.
"""

import math
from dataclasses import dataclass

TARGET_WAIT_S = 0.5
MIN_WAITING = 4  # lines, so that a mesh without starts is tried
MAX_WAITING = 2_048
MAX_IN_MESH = 16_384  # lines, running or waiting
RATE_TIME_CONSTANT_S = 5.0
SHED_FACTOR = 0.5  # of the waiting lines, once the queue sheds one
GROWTH_PER_S = 0.1  # of the full allowance, by which it recovers after a shed


@dataclass(slots=True)
class LineWindow:
    """Counts lines. `room` is the number of further lines that may be sent now."""

    waiting: int = 0
    running: int = 0
    _starts: float = 0.0  # decayed by their age
    _updated_at: float = -math.inf
    _allowance: float = 1.0  # share of the target; below 1 after a shed
    _allowance_at: float = 0.0
    _paused_until: float = -math.inf

    def room(self, now: float) -> int:
        if now < self._paused_until:
            return 0
        most = min(MAX_WAITING, max(MIN_WAITING, math.ceil(self._share(now) * self.starts_per_s(now) * TARGET_WAIT_S)))
        return max(0, min(most - self.waiting, MAX_IN_MESH - self.waiting - self.running))

    def starts_per_s(self, now: float) -> float:
        return self._starts * self._decay(now) / RATE_TIME_CONSTANT_S

    @property
    def paused_until(self) -> float:
        return self._paused_until

    def on_sent(self) -> None:
        self.waiting += 1

    def on_running(self, now: float) -> None:
        """A line has left the queue."""
        self.waiting -= 1
        self.running += 1
        self._starts = self._starts * self._decay(now) + 1.0
        self._updated_at = now

    def on_ended(self, *, was_running: bool) -> None:
        if was_running:
            self.running -= 1
        else:
            self.waiting -= 1

    def on_shed(self, retry_after: float, now: float) -> None:
        """The queue wants no further line for `retry_after` s. The caller has called `on_ended`."""
        if now >= self._paused_until:
            self._allowance = max(SHED_FACTOR**6, self._share(now) * SHED_FACTOR)
            self._allowance_at = now
        self._paused_until = max(self._paused_until, now + retry_after)

    def _share(self, now: float) -> float:
        return min(1.0, self._allowance + GROWTH_PER_S * max(0.0, now - self._allowance_at))

    def _decay(self, now: float) -> float:
        return math.exp(min(0.0, self._updated_at - now) / RATE_TIME_CONSTANT_S) if self._starts else 0.0
