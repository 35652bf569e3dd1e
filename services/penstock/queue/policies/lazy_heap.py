"""Heap with O(1) lazy deletion; deleted entries are removed when they reach the top or at a sweep."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])

MIN_SWEEP_ENTRIES = 64  # entries below which no sweep is made


class LazyHeap(Generic[Entry]):
    """Lowest entry first. `is_alive` is false for deleted ones. A sweep at each doubling costs O(1) per push."""

    __slots__ = ("_entries", "_is_alive", "_sweep_at")

    def __init__(self, is_alive: Callable[[Entry], bool]) -> None:
        self._is_alive = is_alive
        self._entries: list[Entry] = []
        self._sweep_at = MIN_SWEEP_ENTRIES

    def __len__(self) -> int:
        """Return the number of entries, including deleted ones that were not removed yet."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries that are alive, in no particular order."""
        return filter(self._is_alive, self._entries)

    def sample(self, max_entries: int) -> Iterator[Entry]:
        """Yield about `max_entries` entries that are alive, evenly from the heap; all if there are fewer."""
        step = max(1, len(self._entries) // max_entries)
        return filter(self._is_alive, self._entries[::step])

    def push(self, entry: Entry) -> None:
        heappush(self._entries, entry)
        if len(self._entries) > self._sweep_at:
            self._entries = [each for each in self._entries if self._is_alive(each)]
            heapify(self._entries)
            self._sweep_at = max(MIN_SWEEP_ENTRIES, 2 * len(self._entries))

    def first(self) -> Entry | None:
        entries, is_alive = self._entries, self._is_alive
        while entries:
            if is_alive(entries[0]):
                return entries[0]
            heappop(entries)
        return None

    def pop(self) -> Entry:
        """Remove and return the entry that `first` has just returned."""
        return heappop(self._entries)
