"""A heap that lets go of any of its entries in no time: the dead stay until they surface or are swept."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])

MIN_SWEEP_ENTRIES = 64  # entries not worth sweeping


class LazyHeap(Generic[Entry]):
    """Lowest entry first. Swept when it has doubled since the last time, which costs each push O(1) on average."""

    __slots__ = ("_entries", "_is_alive", "_sweep_at")

    def __init__(self, is_alive: Callable[[Entry], bool]) -> None:
        self._is_alive = is_alive
        self._entries: list[Entry] = []
        self._sweep_at = MIN_SWEEP_ENTRIES

    def __len__(self) -> int:
        """Count the entries, the dead ones that are still there included."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Yield the living in no particular order."""
        return filter(self._is_alive, self._entries)

    def sample(self, max_entries: int) -> Iterator[Entry]:
        """Yield some of the living, evenly from the whole heap: all where these are `most` or fewer."""
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
        """Remove and return what `first` has just named."""
        return heappop(self._entries)
