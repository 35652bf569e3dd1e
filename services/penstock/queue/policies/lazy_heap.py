"""Heap with O(1) lazy deletion; deleted entries are removed when they reach the top or at a sweep."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Any, Generic, TypeVar

from penstock.chassis.garbage import untracked

Entry = TypeVar("Entry", bound=tuple[Any, ...])

MIN_SWEEP_ENTRIES = 64  # entries below which no sweep is made
MAX_ENTRIES_SWEPT_AT_ONCE = 4_096  # a sweep of more entries is spread over later pushes: 100,000 entries take 20 ms
ENTRIES_SWEPT_PER_PUSH = 8


class LazyHeap(Generic[Entry]):
    """Lowest entry first. `is_alive` is false for deleted ones. A sweep at each doubling costs O(1) per push.

    A sweep of very many entries moves them to a second heap, some at each push. They are taken from the end, so that
    the rest stays a heap.
    """

    __slots__ = ("_entries", "_is_alive", "_sweep_at", "_unswept")

    def __init__(self, is_alive: Callable[[Entry], bool]) -> None:
        self._is_alive = is_alive
        self._entries: list[Entry] = []
        self._unswept: list[Entry] = []  # entries that a sweep has not reached
        self._sweep_at = MIN_SWEEP_ENTRIES

    def __len__(self) -> int:
        """Return the number of entries, including deleted ones that were not removed yet."""
        return len(self._entries) + len(self._unswept)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries that are alive, in no particular order."""
        return filter(self._is_alive, chain(self._entries, self._unswept))

    def sample(self, max_entries: int) -> Iterator[Entry]:
        """Yield about `max_entries` entries that are alive, evenly from the heap; all if there are fewer."""
        step = max(1, len(self) // max_entries)
        return filter(self._is_alive, self._entries[::step] + self._unswept[::step])

    def push(self, entry: Entry) -> None:
        heappush(self._entries, untracked(entry))
        if self._unswept:
            self._continue_sweep()
        elif len(self._entries) > self._sweep_at:
            self._sweep()

    def first(self) -> Entry | None:
        first = self._first_of(self._entries)
        if self._unswept and (unswept := self._first_of(self._unswept)) and (first is None or unswept < first):
            return unswept
        return first

    def pop(self) -> Entry:
        """Remove and return the entry that `first` has just returned."""
        if self._unswept and not (self._entries and self._entries[0] < self._unswept[0]):
            return heappop(self._unswept)
        return heappop(self._entries)

    def _first_of(self, entries: list[Entry]) -> Entry | None:
        is_alive = self._is_alive
        while entries:
            if is_alive(entries[0]):
                return entries[0]
            heappop(entries)
        return None

    def _sweep(self) -> None:
        if len(self._entries) > MAX_ENTRIES_SWEPT_AT_ONCE:
            self._unswept, self._entries, self._sweep_at = self._entries, [], 2 * len(self._entries)
        else:
            self._entries = [each for each in self._entries if self._is_alive(each)]
            heapify(self._entries)
            self._sweep_at = max(MIN_SWEEP_ENTRIES, 2 * len(self._entries))

    def _continue_sweep(self) -> None:
        for _ in range(min(ENTRIES_SWEPT_PER_PUSH, len(self._unswept))):
            if self._is_alive(entry := self._unswept.pop()):
                heappush(self._entries, entry)
        if not self._unswept:
            self._sweep_at = max(MIN_SWEEP_ENTRIES, 2 * len(self._entries))
