"""Timers by key. Knows no clock: the caller passes `now`."""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class Timers(Generic[Key]):
    """One due time per key, in a heap with lazy deletion."""

    _due_at: dict[Key, float] = field(default_factory=dict)
    _heap: list[tuple[float, int, Key]] = field(default_factory=list)  # the number breaks ties, as keys may not compare
    _count: int = 0

    def __len__(self) -> int:
        return len(self._due_at)

    @property
    def next(self) -> float | None:
        """Earliest due time; None if no timer is set."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def set(self, key: Key, due_at: float) -> None:
        self._count += 1
        self._due_at[key] = due_at
        heapq.heappush(self._heap, (due_at, self._count, key))
        # Entries of cancelled timers stay in the heap, which is rebuilt before they outnumber the live ones.
        if len(self._heap) > 64 + 2 * len(self._due_at):
            self._heap = [entry for entry in self._heap if self._due_at.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def cancel(self, key: Key) -> None:
        self._due_at.pop(key, None)

    def pop_due(self, now: float) -> list[Key]:
        """Remove the timers that are due and return their keys, earliest first."""
        keys = []
        while (at := self.next) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._due_at[key]
            keys.append(key)
        return keys

    def _drop_stale(self) -> None:
        while self._heap and self._due_at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
