"""Adaptive LIFO: newest first while a queue exists, because the newest requests have the most time left.

Source: Maurer 2015, Fail at Scale (Facebook): FIFO in normal operation, LIFO once a queue forms.
"""

from penstock.queue.policies.lazy_heap import LazyHeap
from penstock.queue.policies.policy import Fit, FitFn, QueuePosition, SortKey, TicketTotals
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.baselines.base import SingleShardPolicy

# Class, enqueue time and arrival number (negated for newest first), listing version, ticket.
LifoEntry = tuple[int, float, int, int, QueuedTicket]


class AdaptiveLifo(SingleShardPolicy):
    """Strict classes; FIFO up to `max_fifo_tickets` waiting tickets, LIFO above. A ticket that does not fit blocks."""

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
        newest_first = -ticket.enqueued, -ticket.arrival_number, ticket.listing_version, ticket
        self._oldest.push((ticket.priority, ticket.enqueued, ticket.arrival_number, ticket.listing_version, ticket))
        self._newest.push((ticket.priority, *newest_first))
        self._evictable.push((-ticket.priority, *newest_first))

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
        above = [totals for priority, totals in self._totals_by_class.items() if priority < ticket.priority]
        own = self._totals_by_class.get(ticket.priority, TicketTotals(0, 0))
        return QueuePosition(*_sum_totals([*above, own] if own.tickets <= self._max_fifo_tickets else above))

    def evictable(self, priority: int) -> TicketTotals:
        return _sum_totals([totals for lower, totals in self._totals_by_class.items() if lower > priority])

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        entry = self._evictable.first()
        return (entry[-1], _sort_key(entry[-1])) if entry and entry[-1].priority > priority else None

    def _next(self) -> QueuedTicket | None:
        heap = self._oldest if self.totals.tickets <= self._max_fifo_tickets else self._newest
        entry = heap.first()
        return entry[-1] if entry else None

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        ticket.listing_version += 1
        totals = self._totals_by_class.get(ticket.priority, TicketTotals(0, 0))
        self._totals_by_class[ticket.priority] = TicketTotals(
            totals.tickets + sign, totals.tokens + sign * ticket.tokens
        )


def _sort_key(ticket: QueuedTicket) -> SortKey:
    return SortKey(ticket.priority, 0.0, ticket.enqueued)


def _sum_totals(totals: list[TicketTotals]) -> TicketTotals:
    return TicketTotals(sum(each.tickets for each in totals), sum(each.tokens for each in totals))


def _is_current(entry: LifoEntry) -> bool:
    return entry[-1].listing_version == entry[-2]
