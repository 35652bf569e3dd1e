"""Virtual time: what happens when. Equal times keep the order in which they were asked for."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class SimEventQueue:
    """One heap for the whole mesh. An event is a call with its arguments; nothing is ever taken out before its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events_run = 0  # events that have happened
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at: float, callback: Callable[..., None], *args: Any) -> None:
        assert at >= self.now, "an effect cannot come before its cause"
        self._last_number += 1
        heappush(self._heap, (at, self._last_number, callback, args))

    def schedule_after(self, delay: float, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._last_number += 1
        heappush(self._heap, (self.now + delay, self._last_number, callback, args))

    def run(self, until: float) -> None:
        """Let everything happen that is due by `until`, and let the time be `until` then."""
        heap, past = self._heap, 0
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heappop(heap)
            past += 1
            call(*args)
        self.events_run += past
        self.now = until
