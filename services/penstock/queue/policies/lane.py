"""Tickets in one line, by rank."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from penstock.queue.lazy_heap import LazyHeap
from penstock.queue.policies.order import Ahead, Fit, FitOf
from penstock.queue.policies.ranks import Rank, fifo
from penstock.queue.waiting import WaitingTicket

LOOK_PAST = 32  # tickets looked at behind those that do not fit
MAX_PASSES = 32  # times others may go before a ticket that does not fit yet; then all wait for it
SAMPLE = 64  # tickets of a line that are looked at to tell how many go before another

Entry = tuple[float, int, int, WaitingTicket]  # rank, arrival, listing, ticket


@dataclass(slots=True)
class Taken:
    """What came of looking for a ticket that fits."""

    ticket: WaitingTicket | None = None
    late: list[WaitingTicket] = field(default_factory=list)  # that do not fit yet and were passed
    is_barred: bool = False  # by one of them, for all that come after it
    looked_at: int = 0

    def passed(self) -> None:
        pass_by(self.late)


class Lane:
    """A ticket too large for the credit at hand is passed by others behind it, at most MAX_PASSES times: then it bars
    the line, workers run empty, and it fits.
    """

    __slots__ = ("_first", "_rank", "tickets", "work")

    def __init__(self, rank: Rank = fifo) -> None:
        self._rank = rank
        self._first: LazyHeap[Entry] = LazyHeap(is_current)
        self.tickets = 0
        self.work = 0

    def __iter__(self) -> Iterator[WaitingTicket]:
        return (entry[-1] for entry in self._first)

    def push(self, ticket: WaitingTicket) -> None:
        self._count(ticket, 1)
        self._first.push((self._rank(ticket), ticket.arrival, ticket.listing, ticket))

    def remove(self, ticket: WaitingTicket) -> None:
        self._count(ticket, -1)

    def first(self) -> WaitingTicket | None:
        entry = self._first.first()
        return entry[-1] if entry else None

    def take(self, fit: FitOf, most: int = LOOK_PAST) -> Taken:
        """Remove the first that fits now, looking at no more than `most`."""
        found = Taken()
        put_back: list[Entry] = []
        while found.looked_at < most and not found.is_barred and (entry := self._first.first()):
            ticket, verdict = entry[-1], fit(entry[-1])
            found.looked_at += 1
            if verdict is Fit.NOW:
                found.ticket = ticket
                break
            put_back.append(self._first.pop())
            if verdict is Fit.LATER:
                found.late.append(ticket)
                found.is_barred = ticket.passed_by >= MAX_PASSES
        if found.ticket:
            self._first.pop()
            self._count(found.ticket, -1)
        for entry in put_back:
            self._first.push(entry)
        return found

    def ahead(self, ticket: WaitingTicket) -> Ahead:
        """Count those of a better rank; in a long line, by a sample."""
        if self._rank is fifo or not self.tickets:
            return Ahead(self.tickets, self.work)
        rank = self._rank(ticket)
        seen = list(islice(self._first.sample(SAMPLE), SAMPLE))
        better = [entry[-1] for entry in seen if entry[0] <= rank]
        scale = self.tickets / max(1, len(seen))
        return Ahead(len(better) * scale, sum(each.work for each in better) * scale)

    def _count(self, ticket: WaitingTicket, sign: int) -> None:
        ticket.listing += 1
        self.tickets += sign
        self.work += sign * ticket.work


def pass_by(late: Iterable[WaitingTicket]) -> None:
    """Remember who was passed, now that somebody went."""
    for ticket in late:
        ticket.passed_by += 1


def is_current(entry: Entry) -> bool:
    return entry[-1].listing == entry[-2]
