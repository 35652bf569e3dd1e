"""Strict classes, first come first served within each; resumed work at the head of its class."""

from penstock.queue.policies.lazy_heap import Entry, LazyHeap
from penstock.queue.policies.order import Key
from penstock.queue.waiting import WaitingTicket

LOOK_PAST = 16  # tickets looked at behind one that does not fit
MAX_PASSES = 32  # times smaller tickets may go before one that does not fit; then all wait for it


class ClassFifo:
    """Two heaps per class: what is served first, and what is evicted first.

    A ticket too large for the credit at hand is passed by smaller ones behind it, at most MAX_PASSES times: then
    nothing of its class or below goes first, workers run empty, and it fits.
    """

    def __init__(self) -> None:
        self._alive: dict[str, int] = {}
        self._first: dict[int, LazyHeap] = {}
        self._newest: dict[int, LazyHeap] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._alive)

    def push(self, ticket: WaitingTicket) -> None:
        self._arrivals += 1
        self._alive[ticket.ticket_id] = self._arrivals
        for heaps in (self._first, self._newest):
            heaps.setdefault(ticket.priority, LazyHeap(self._alive))
        self._first[ticket.priority].push((not ticket.resumes, ticket.enqueued), self._arrivals, ticket)
        self._newest[ticket.priority].push((ticket.resumes, -ticket.enqueued), self._arrivals, ticket)

    def remove(self, ticket: WaitingTicket) -> None:
        self._alive.pop(ticket.ticket_id, None)

    def take(self, max_tokens: int) -> WaitingTicket | None:
        for priority in sorted(self._first):
            ticket, is_barred = self._take_from(self._first[priority], max_tokens)
            if ticket:
                self.remove(ticket)
            if ticket or is_barred:
                return ticket
        return None

    def head(self) -> tuple[WaitingTicket, Key] | None:
        for priority in sorted(self._first):
            if ticket := self._first[priority].first():
                return ticket, Key(priority, 0.0, ticket.enqueued)
        return None

    def newest_below(self, priority: int) -> WaitingTicket | None:
        for lowest in sorted(self._newest, reverse=True):
            if lowest <= priority:
                return None
            if ticket := self._newest[lowest].first():
                return ticket
        return None

    @staticmethod
    def _take_from(heap: LazyHeap, max_tokens: int) -> tuple[WaitingTicket | None, bool]:
        """The first that fits, and whether one that does not fit bars all behind it."""
        passed: list[Entry] = []
        found, is_barred = None, False
        while len(passed) < LOOK_PAST and not is_barred and (ticket := heap.first()):
            if not max_tokens or ticket.tokens <= max_tokens:
                found = ticket
                break
            passed.append(heap.pop())
            is_barred = ticket.passed_by >= MAX_PASSES
        for entry in passed:
            entry[2].passed_by += found is not None
            heap.put_back(entry)
        return found, is_barred
