"""Tickets in one line, by rank."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from penstock.queue.policies.lazy_heap import LazyHeap
from penstock.queue.policies.policy import Fit, FitFn, QueuePosition
from penstock.queue.policies.ticket_order import Rank, fifo
from penstock.queue.ticket import QueuedTicket

MAX_TICKETS_SCANNED = 32  # tickets looked at behind those that do not fit
MAX_TIMES_PASSED = 32  # times others may go before a ticket that does not fit yet; then all wait for it
POSITION_SAMPLE_SIZE = 64  # tickets of a line that are looked at to tell how many go before another

RankedEntry = tuple[float, int, int, QueuedTicket]  # rank, arrival, listing, ticket


@dataclass(slots=True)
class TakeResult:
    """What came of looking for a ticket that fits."""

    ticket: QueuedTicket | None = None
    passed_over: list[QueuedTicket] = field(default_factory=list)  # that do not fit yet and were passed
    is_blocked: bool = False  # by one of them, for all that come after it
    scanned: int = 0

    def record_passes(self) -> None:
        record_passes(self.passed_over)


class RankedQueue:
    """A ticket too large for the credit at hand is passed by others behind it, at most MAX_PASSES times: then it bars
    the line, workers run empty, and it fits.
    """

    __slots__ = ("_heap", "_rank", "tickets", "work")

    def __init__(self, rank: Rank = fifo) -> None:
        self._rank = rank
        self._heap: LazyHeap[RankedEntry] = LazyHeap(is_current)
        self.tickets = 0
        self.work = 0

    def __iter__(self) -> Iterator[QueuedTicket]:
        return (entry[-1] for entry in self._heap)

    def push(self, ticket: QueuedTicket) -> None:
        self._adjust_totals(ticket, 1)
        self._heap.push((self._rank(ticket), ticket.arrival_number, ticket.listing_version, ticket))

    def remove(self, ticket: QueuedTicket) -> None:
        self._adjust_totals(ticket, -1)

    def first(self) -> QueuedTicket | None:
        entry = self._heap.first()
        return entry[-1] if entry else None

    def pop_fitting(self, fit: FitFn, max_scanned: int = MAX_TICKETS_SCANNED) -> TakeResult:
        """Remove the first that fits now, looking at no more than `most`."""
        found = TakeResult()
        put_back: list[RankedEntry] = []
        while found.scanned < max_scanned and not found.is_blocked and (entry := self._heap.first()):
            ticket, verdict = entry[-1], fit(entry[-1])
            found.scanned += 1
            if verdict is Fit.NOW:
                found.ticket = ticket
                break
            put_back.append(self._heap.pop())
            if verdict is Fit.LATER:
                found.passed_over.append(ticket)
                found.is_blocked = ticket.times_passed >= MAX_TIMES_PASSED
        if found.ticket:
            self._heap.pop()
            self._adjust_totals(found.ticket, -1)
        for entry in put_back:
            self._heap.push(entry)
        return found

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Count those of a better rank; in a long line, by a sample."""
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
    """Remember who was passed, now that somebody went."""
    for ticket in passed_over:
        ticket.times_passed += 1


def is_current(entry: RankedEntry) -> bool:
    return entry[-1].listing_version == entry[-2]
