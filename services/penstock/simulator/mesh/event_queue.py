"""Virtual time: what happens when. Equal times keep the order in which they were asked for."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Events:
    """One heap for the whole mesh. An event is a call with its arguments; nothing is ever taken out before its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.past = 0  # events that have happened
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        assert when >= self.now, "an effect cannot come before its cause"
        self._number += 1
        heappush(self._heap, (when, self._number, call, args))

    def after(self, delay: float, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._number += 1
        heappush(self._heap, (self.now + delay, self._number, call, args))

    def run(self, until: float) -> None:
        """Let everything happen that is due by `until`, and let the time be `until` then."""
        heap, past = self._heap, 0
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heappop(heap)
            past += 1
            call(*args)
        self.past += past
        self.now = until
