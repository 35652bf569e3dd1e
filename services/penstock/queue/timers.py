"""What time does to tickets: those that are due, and those that pause. Knows no clock."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from penstock.queue.lazy_heap import LazyHeap
from penstock.queue.waiting import WaitingTicket

PAUSE = 0.1  # s after a decline too many; without it a ticket that only its avoided workers have room for would circle

Timed: TypeAlias = tuple[float, int, WaitingTicket]  # when, arrival, ticket


class Timers:
    """Tickets that have left are passed over, as `is_here` tells them."""

    def __init__(self, is_here: Callable[[WaitingTicket], bool]) -> None:
        self.dues: LazyHeap[Timed] = LazyHeap(lambda entry: is_here(entry[-1]))
        self.pauses: LazyHeap[Timed] = LazyHeap(lambda entry: is_here(entry[-1]))

    def admit(self, ticket: WaitingTicket) -> None:
        if ticket.due:
            self.dues.push((ticket.due, ticket.arrival, ticket))

    def pause(self, ticket: WaitingTicket, now: float) -> None:
        self.pauses.push((now + PAUSE, ticket.arrival, ticket))

    def overdue(self, now: float) -> Iterator[WaitingTicket]:
        """Yield tickets past their due times; the caller drops each before it asks for the next."""
        while (entry := self.dues.first()) and entry[0] <= now:
            yield entry[-1]

    def has_overdue(self, now: float) -> bool:
        return next(self.overdue(now), None) is not None

    def paused(self, now: float) -> Iterator[WaitingTicket]:
        """Yield, once, those whose pause is over."""
        while (entry := self.pauses.first()) and entry[0] <= now:
            yield self.pauses.pop()[-1]
