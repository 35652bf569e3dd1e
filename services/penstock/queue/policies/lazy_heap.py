"""Heap with O(1) lazy deletion; deleted entries are removed when they reach the top or at a sweep."""

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import Any, Generic, TypeVar

from penstock.chassis.garbage import untracked

Entry = TypeVar("Entry", bound=tuple[Any, ...])

MIN_SWEEP_ENTRIES = 64  # entries below which no sweep is made
ENTRIES_SWEPT_PER_CALL = 8


class LazyHeap(Generic[Entry]):
    """Lowest entry first. `is_alive` is false for deleted ones.

    With `counts_deletions`, the owner calls `on_deleted` for each deletion, and a sweep removes the deleted entries
    when they are half of all; otherwise, whenever the number of entries has doubled. A sweep moves the entries to a
    second heap, some at each call: 100,000 entries at once would take 20 ms. They are taken from the end, so that the
    rest stays a heap.
    """

    __slots__ = ("_deleted", "_entries", "_is_alive", "_min_sweep_at", "_sweep_at", "_unswept")

    def __init__(self, is_alive: Callable[[Entry], bool], *, counts_deletions: bool = False) -> None:
        self._is_alive = is_alive
        self._entries: list[Entry] = []
        self._unswept: list[Entry] = []  # entries that a sweep has not reached
        self._min_sweep_at = self._sweep_at = math.inf if counts_deletions else MIN_SWEEP_ENTRIES
        self._deleted = 0  # entries that `on_deleted` has reported and that were not removed yet

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
            self._start_sweep()

    def on_deleted(self) -> None:
        """Count a deletion, and remove some deleted entries, so that `first` does not find very many at once."""
        self._deleted += 1
        if self._unswept:
            self._continue_sweep()
        elif self._entries and not self._is_alive(self._entries[0]):
            heappop(self._entries)
            self._deleted -= 1
        elif self._deleted > MIN_SWEEP_ENTRIES and 2 * self._deleted > len(self._entries):
            self._start_sweep()

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
            self._deleted = max(0, self._deleted - 1)
        return None

    def _start_sweep(self) -> None:
        self._unswept, self._entries = self._entries, []
        self._sweep_at, self._deleted = max(self._min_sweep_at, 2 * len(self._unswept)), 0

    def _continue_sweep(self) -> None:
        for _ in range(min(ENTRIES_SWEPT_PER_CALL, len(self._unswept))):
            if self._is_alive(entry := self._unswept.pop()):
                heappush(self._entries, entry)
        if not self._unswept:
            self._sweep_at = max(self._min_sweep_at, 2 * len(self._entries))
