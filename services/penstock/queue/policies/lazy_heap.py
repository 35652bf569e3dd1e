"""A heap of tickets that lets go of any of them: the dead stay until they surface or outnumber the living."""

from heapq import heapify, heappop, heappush

from penstock.queue.waiting import WaitingTicket

Entry = tuple[tuple[float, ...], int, WaitingTicket]  # key, arrival, ticket

SMALL = 64  # entries not worth sweeping


class LazyHeap:
    """`alive` is shared by all heaps of one order: the arrival number under which each ticket stands now."""

    def __init__(self, alive: dict[str, int]) -> None:
        self._alive = alive
        self._entries: list[Entry] = []

    def push(self, key: tuple[float, ...], arrival: int, ticket: WaitingTicket) -> None:
        if len(self._entries) > max(SMALL, 2 * len(self._alive)):
            self._entries = [entry for entry in self._entries if self._is_alive(entry)]
            heapify(self._entries)
        heappush(self._entries, (key, arrival, ticket))

    def first(self) -> WaitingTicket | None:
        while self._entries and not self._is_alive(self._entries[0]):
            heappop(self._entries)
        return self._entries[0][2] if self._entries else None

    def pop(self) -> Entry:
        """Remove and return the first entry; `first` has just named its ticket."""
        return heappop(self._entries)

    def put_back(self, entry: Entry) -> None:
        heappush(self._entries, entry)

    def _is_alive(self, entry: Entry) -> bool:
        return self._alive.get(entry[2].ticket_id) == entry[1]
