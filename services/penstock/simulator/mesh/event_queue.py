"""Event queue and virtual clock. Events with equal times run in the order in which they were scheduled."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class SimEventQueue:
    """One heap for the whole mesh. An event is a callback with its arguments, and cannot be cancelled."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events_run = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at: float, callback: Callable[..., object], *args: Any) -> None:
        assert at >= self.now, "an event cannot be scheduled in the past"
        self._last_number += 1
        heappush(self._heap, (at, self._last_number, callback, args))

    def schedule_after(self, delay: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._last_number += 1
        heappush(self._heap, (self.now + delay, self._last_number, callback, args))

    def run(self, until: float) -> None:
        """Run all events up to the time `until`, and advance the clock to it."""
        heap, events_run = self._heap, 0
        while heap and heap[0][0] <= until:
            self.now, _, callback, args = heappop(heap)
            events_run += 1
            callback(*args)
        self.events_run += events_run
        self.now = until
