"""Ranked queue: tickets in the order of their ranks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from penstock.queue.policies.lazy_heap import LazyHeap
from penstock.queue.policies.policy import Fit, FitFn, QueuePosition
from penstock.queue.policies.ticket_order import Rank, fifo
from penstock.queue.ticket import QueuedTicket

MAX_TICKETS_SCANNED = 32  # tickets scanned for one that fits
MAX_TIMES_PASSED = 32  # times that others may pass a ticket that does not fit yet; then the queue waits for it
POSITION_SAMPLE_SIZE = 64  # tickets sampled to estimate the work before a ticket

RankedEntry = tuple[float, int, int, QueuedTicket]  # rank, arrival number, listing version, ticket


@dataclass(slots=True)
class TakeResult:
    """Result of a search for a ticket that fits."""

    ticket: QueuedTicket | None = None
    passed_over: list[QueuedTicket] = field(default_factory=list)  # tickets that do not fit yet
    is_blocked: bool = False  # one of these blocks all tickets behind it
    scanned: int = 0  # tickets

    def record_passes(self) -> None:
        record_passes(self.passed_over)


class RankedQueue:
    """Tickets by rank. Others pass a ticket that is too large for the present credit, at most MAX_TIMES_PASSED times.

    Then it blocks the queue until workers have enough free capacity for it.
    """

    __slots__ = ("_heap", "_rank", "tickets", "work")

    def __init__(self, rank: Rank = fifo) -> None:
        self._rank = rank
        self._heap: LazyHeap[RankedEntry] = LazyHeap(is_current, counts_deletions=True)
        self.tickets = 0
        self.work = 0

    def __iter__(self) -> Iterator[QueuedTicket]:
        return (entry[-1] for entry in self._heap)

    def push(self, ticket: QueuedTicket) -> None:
        self._adjust_totals(ticket, 1)
        self._heap.push((self._rank(ticket), ticket.arrival_number, ticket.listing_version, ticket))

    def remove(self, ticket: QueuedTicket) -> None:
        self._adjust_totals(ticket, -1)
        self._heap.on_deleted()

    def first(self) -> QueuedTicket | None:
        entry = self._heap.first()
        return entry[-1] if entry else None

    def pop_fitting(self, fit: FitFn, max_scanned: int = MAX_TICKETS_SCANNED) -> TakeResult:
        """Remove the first ticket that fits now, and scan at most `max_scanned` tickets."""
        result = TakeResult()
        put_back: list[RankedEntry] = []
        while result.scanned < max_scanned and not result.is_blocked and (entry := self._heap.first()):
            ticket, verdict = entry[-1], fit(entry[-1])
            result.scanned += 1
            if verdict is Fit.NOW:
                result.ticket = ticket
                break
            put_back.append(self._heap.pop())
            if verdict is Fit.LATER:
                result.passed_over.append(ticket)
                result.is_blocked = ticket.times_passed >= MAX_TIMES_PASSED
        if result.ticket:
            self._heap.pop()
            self._adjust_totals(result.ticket, -1)
        for entry in put_back:
            self._heap.push(entry)
        return result

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Return the work of tickets with a better rank. In a long queue, it is estimated by a sample."""
        if self._rank is fifo or not self.tickets:
            return QueuePosition(self.tickets, self.work)
        rank = self._rank(ticket)
        seen = list(islice(self._heap.sample(POSITION_SAMPLE_SIZE), POSITION_SAMPLE_SIZE))
        better = [entry[-1] for entry in seen if entry[0] <= rank]
        scale = self.tickets / max(1, len(seen))
        return QueuePosition(len(better) * scale, sum(each.work for each in better) * scale)

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        ticket.listing_version += 1
        self.tickets += sign
        self.work += sign * ticket.work


def record_passes(passed_over: Iterable[QueuedTicket]) -> None:
    """Count one pass for each ticket that was passed over, now that another ticket was taken."""
    for ticket in passed_over:
        ticket.times_passed += 1


def is_current(entry: RankedEntry) -> bool:
    return entry[-1].listing_version == entry[-2]
