"""Newest first while there is a queue: those who have just come still have time left.

Source: Maurer 2015, Fail at Scale (Facebook): FIFO in normal operation, LIFO once a queue forms.
"""

from penstock.queue.policies.lazy_heap import LazyHeap
from penstock.queue.policies.policy import Fit, FitFn, QueuePosition, SortKey, TicketTotals
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.base import SingleShardPolicy

LifoEntry = tuple[int, float, int, int, QueuedTicket]  # class, time and arrival up or down, listing, ticket


class AdaptiveLifo(SingleShardPolicy):
    """Strict classes; within one, FIFO up to `short` waiting tickets and LIFO above. A ticket too large bars others."""

    def __init__(self, max_fifo_tickets: int) -> None:
        self._max_fifo_tickets = max_fifo_tickets
        self._oldest: LazyHeap[LifoEntry] = LazyHeap(_is_current)
        self._newest: LazyHeap[LifoEntry] = LazyHeap(_is_current)
        self._evictable: LazyHeap[LifoEntry] = LazyHeap(_is_current)  # lowest class first, its newest first
        self._totals_by_class: dict[int, TicketTotals] = {}  # by class

    @property
    def totals(self) -> TicketTotals:
        return _sum_totals(list(self._totals_by_class.values()))

    def pop_dropped(self) -> list[QueuedTicket]:
        return []

    def push(self, ticket: QueuedTicket) -> None:
        self._adjust_totals(ticket, 1)
        back = -ticket.enqueued, -ticket.arrival_number, ticket.listing_version, ticket
        self._oldest.push((ticket.priority, ticket.enqueued, ticket.arrival_number, ticket.listing_version, ticket))
        self._newest.push((ticket.priority, *back))
        self._evictable.push((-ticket.priority, *back))

    def remove(self, ticket: QueuedTicket) -> None:
        if ticket.is_listed:
            self._adjust_totals(ticket, -1)

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        ticket = self._next()
        if ticket is None or fit(ticket) is not Fit.NOW:
            return None
        self.remove(ticket)
        return ticket

    def head(self) -> tuple[QueuedTicket, SortKey] | None:
        ticket = self._next()
        return (ticket, _sort_key(ticket)) if ticket else None

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        ticket.charged_cost = cost

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        above = [load for priority, load in self._totals_by_class.items() if priority < ticket.priority]
        own = self._totals_by_class.get(ticket.priority, TicketTotals(0, 0))
        return QueuePosition(*_sum_totals([*above, own] if own.tickets <= self._max_fifo_tickets else above))

    def evictable(self, priority: int) -> TicketTotals:
        return _sum_totals([load for lower, load in self._totals_by_class.items() if lower > priority])

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        entry = self._evictable.first()
        return (entry[-1], _sort_key(entry[-1])) if entry and entry[-1].priority > priority else None

    def _next(self) -> QueuedTicket | None:
        heap = self._oldest if self.totals.tickets <= self._max_fifo_tickets else self._newest
        entry = heap.first()
        return entry[-1] if entry else None

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        ticket.listing_version += 1
        load = self._totals_by_class.get(ticket.priority, TicketTotals(0, 0))
        self._totals_by_class[ticket.priority] = TicketTotals(load.tickets + sign, load.tokens + sign * ticket.tokens)


def _sort_key(ticket: QueuedTicket) -> SortKey:
    return SortKey(ticket.priority, 0.0, ticket.enqueued)


def _sum_totals(totals: list[TicketTotals]) -> TicketTotals:
    return TicketTotals(sum(load.tickets for load in totals), sum(load.tokens for load in totals))


def _is_current(entry: LifoEntry) -> bool:
    return entry[-1].listing_version == entry[-2]
