"""The waiting tickets of one class, by first enqueue; resumed work at the head."""

from penstock.queue.lazy_heap import LazyHeap
from penstock.queue.policies.order import Fit, FitOf, Load
from penstock.queue.waiting import WaitingTicket

LOOK_PAST = 32  # tickets looked at behind those that do not fit
MAX_PASSES = 32  # times others may go before a ticket that does not fit yet; then all wait for it

Entry = tuple[bool, float, int, int, WaitingTicket]  # not resumed, first enqueue, arrival, listing, ticket


class Lane:
    """Two heaps: what is served first and, once anybody asked for it, what is evicted first.

    A ticket too large for the credit at hand is passed by others behind it, at most MAX_PASSES times: then nothing
    of its class or below goes first, workers run empty, and it fits.
    """

    def __init__(self) -> None:
        self._first: LazyHeap[Entry] = LazyHeap(_is_current)
        self._newest: LazyHeap[Entry] | None = None
        self._tickets = self._tokens = 0
        self._resumed = self._resumed_tokens = 0

    @property
    def load(self) -> Load:
        return Load(self._tickets, self._tokens)

    @property
    def resumed(self) -> Load:
        return Load(self._resumed, self._resumed_tokens)

    @property
    def evictable(self) -> Load:
        return Load(self._tickets - self._resumed, self._tokens - self._resumed_tokens)

    def push(self, ticket: WaitingTicket) -> None:
        assert not ticket.is_listed, "a ticket stands in one place"
        self._toggle(ticket, 1)
        self._first.push(_entry(ticket))
        if self._newest is not None and not ticket.resumes:
            self._newest.push(_reversed(ticket))

    def remove(self, ticket: WaitingTicket) -> None:
        if ticket.is_listed:
            self._toggle(ticket, -1)

    def first(self) -> WaitingTicket | None:
        entry = self._first.first()
        return entry[-1] if entry else None

    def newest(self) -> WaitingTicket | None:
        if self._newest is None:
            self._newest = LazyHeap(_is_current)
            for *_, ticket in self._first:
                if not ticket.resumes:
                    self._newest.push(_reversed(ticket))
        entry = self._newest.first()
        return entry[-1] if entry else None

    def take(self, fit: FitOf) -> tuple[WaitingTicket | None, bool]:
        """Remove the first that fits now. Also tells whether one that does not bars all that come after it."""
        passed: list[Entry] = []
        late: list[WaitingTicket] = []
        found, is_barred = None, False
        while len(passed) < LOOK_PAST and not is_barred and (entry := self._first.first()):
            ticket, verdict = entry[-1], fit(entry[-1])
            if verdict is Fit.NOW:
                found = ticket
                break
            passed.append(self._first.pop())
            if verdict is Fit.LATER:
                late.append(ticket)
                is_barred = ticket.passed_by >= MAX_PASSES
        if found:
            self._first.pop()
            self._toggle(found, -1)
            for ticket in late:
                ticket.passed_by += 1
        for entry in passed:
            self._first.push(entry)
        return found, is_barred

    def _toggle(self, ticket: WaitingTicket, sign: int) -> None:
        ticket.listing += 1
        self._tickets += sign
        self._tokens += sign * ticket.tokens
        if ticket.resumes:
            self._resumed += sign
            self._resumed_tokens += sign * ticket.tokens


def _entry(ticket: WaitingTicket) -> Entry:
    return (not ticket.resumes, ticket.enqueued, ticket.arrival, ticket.listing, ticket)


def _reversed(ticket: WaitingTicket) -> Entry:
    return (True, -ticket.enqueued, -ticket.arrival, ticket.listing, ticket)


def _is_current(entry: Entry) -> bool:
    return entry[-1].listing == entry[-2]
