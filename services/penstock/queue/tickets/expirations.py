"""What time does to tickets: those that are due, and those that pause. Knows no clock."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from penstock.queue.policies.lazy_heap import LazyHeap
from penstock.queue.ticket import QueuedTicket

DECLINE_PAUSE_S = (
    0.1  # s after a decline too many; without it a ticket that only its avoided workers have room for would circle
)

TimedEntry: TypeAlias = tuple[float, int, QueuedTicket]  # when, arrival, ticket


class TicketExpirations:
    """Tickets that have left are passed over, as `is_here` tells them."""

    def __init__(self, contains: Callable[[QueuedTicket], bool]) -> None:
        self.lease_deadlines: LazyHeap[TimedEntry] = LazyHeap(lambda entry: contains(entry[-1]))
        self.pauses: LazyHeap[TimedEntry] = LazyHeap(lambda entry: contains(entry[-1]))

    def schedule_expiration(self, ticket: QueuedTicket) -> None:
        if ticket.lease_deadline:
            self.lease_deadlines.push((ticket.lease_deadline, ticket.arrival_number, ticket))

    def pause(self, ticket: QueuedTicket, now: float) -> None:
        self.pauses.push((now + DECLINE_PAUSE_S, ticket.arrival_number, ticket))

    def overdue(self, now: float) -> Iterator[QueuedTicket]:
        """Yield tickets past their due times; the caller drops each before it asks for the next."""
        while (entry := self.lease_deadlines.first()) and entry[0] <= now:
            yield entry[-1]

    def has_overdue(self, now: float) -> bool:
        return next(self.overdue(now), None) is not None

    def pop_unpaused(self, now: float) -> Iterator[QueuedTicket]:
        """Yield, once, those whose pause is over."""
        while (entry := self.pauses.first()) and entry[0] <= now:
            yield self.pauses.pop()[-1]
