"""Timers of tickets: lease deadlines and pauses. Has no clock."""

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from penstock.queue.policies.lazy_heap import LazyHeap
from penstock.queue.ticket import QueuedTicket

# Pause in s of a ticket that every scheduler has declined. Without it, a ticket for which only avoided workers have
# free capacity would be offered and declined in a loop.
DECLINE_PAUSE_S = 0.1

TimedEntry: TypeAlias = tuple[float, int, QueuedTicket]  # time in s, arrival number, ticket


class TicketExpirations:
    """Timers of the waiting tickets. Timers of tickets that `contains` rejects are skipped."""

    def __init__(self, contains: Callable[[QueuedTicket], bool]) -> None:
        self.lease_deadlines: LazyHeap[TimedEntry] = LazyHeap(lambda entry: contains(entry[-1]), counts_deletions=True)
        self.pauses: LazyHeap[TimedEntry] = LazyHeap(lambda entry: contains(entry[-1]))

    def schedule_expiration(self, ticket: QueuedTicket) -> None:
        if ticket.lease_deadline:
            self.lease_deadlines.push((ticket.lease_deadline, ticket.arrival_number, ticket))

    def on_removed(self, ticket: QueuedTicket) -> None:
        """Free the timer of a ticket that `contains` rejects from now on."""
        if ticket.lease_deadline:
            self.lease_deadlines.on_deleted()

    def pause(self, ticket: QueuedTicket, now: float) -> None:
        self.pauses.push((now + DECLINE_PAUSE_S, ticket.arrival_number, ticket))

    def overdue(self, now: float) -> Iterator[QueuedTicket]:
        """Yield tickets past their lease deadlines. The caller drops each before it takes the next."""
        while (entry := self.lease_deadlines.first()) and entry[0] <= now:
            yield entry[-1]

    def next_due_at(self) -> float:
        """Return the s of the next lease deadline or end of a pause; infinite if there is none."""
        deadline, pause = self.lease_deadlines.first(), self.pauses.first()
        return min(deadline[0] if deadline else math.inf, pause[0] if pause else math.inf)

    def pop_unpaused(self, now: float) -> Iterator[QueuedTicket]:
        """Yield, once each, the tickets whose pause has ended."""
        while (entry := self.pauses.first()) and entry[0] <= now:
            yield self.pauses.pop()[-1]
