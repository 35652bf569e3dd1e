"""What falls due when. Knows no clock: `now` comes in."""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Timers(Generic[Key]):
    """One moment per key; the earliest is found without looking at the rest."""

    _due_at: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)  # the number keeps keys from being compared
    _count: int = 0

    def __len__(self) -> int:
        return len(self._due_at)

    @property
    def next(self) -> float | None:
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def set(self, key: Key, due_at: float) -> None:
        self._count += 1
        self._due_at[key] = due_at
        heapq.heappush(self._heap, (due_at, self._count, key))
        # Keys that were dropped long before they fell due stay in the heap: rebuilt before they outnumber the live.
        if len(self._heap) > 64 + 2 * len(self._due_at):
            self._heap = [entry for entry in self._heap if self._due_at.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def cancel(self, key: Key) -> None:
        self._due_at.pop(key, None)

    def pop_due(self, now: float) -> list[Key]:
        """Return the keys whose moment has come, earliest first, and forget them."""
        keys = []
        while (at := self.next) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._due_at[key]
            keys.append(key)
        return keys

    def _drop_stale(self) -> None:
        while self._heap and self._due_at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
