"""What the book asks of an order."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from penstock.queue.ticket import QueuedTicket


class SortKey(NamedTuple):
    """How urgent a ticket is, lower first; comparable over shards."""

    priority: int
    virtual_tokens: float  # weighted service of its tenant so far; 0 where an order keeps none
    enqueued: float  # s
    lifted_tokens: float = 0.0  # of the virtual tokens, what only serves to keep up with other shards


class TicketTotals(NamedTuple):
    """How much waits."""

    tickets: int
    tokens: int


NO_TICKETS = TicketTotals(0, 0)


class QueuePosition(NamedTuple):
    """What is served before a ticket; may be an estimate."""

    tickets: float
    work: float  # tokens, output as predicted


class Fit(Enum):
    """What a scheduler's credit can do for a ticket."""

    NOW = "now"
    LATER = "later"  # too large for what is free at present: others may pass it, but not for ever
    NEVER = "never"  # not by this scheduler: others pass it, and no scheduler is held up for it


FitFn = Callable[[QueuedTicket], Fit]


class SchedulingPolicy(Protocol):
    """The waiting tickets of one model."""

    @property
    def totals(self) -> TicketTotals: ...

    def push(self, ticket: QueuedTicket) -> None:
        """Add a ticket, new or given back; one given back finds its old place."""

    def remove(self, ticket: QueuedTicket) -> None:
        """Forget a ticket, wherever it stands; it may be gone already."""

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        """Remove and return the first ticket that fits now, its tenant charged; None when none may go."""

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Make `cost`, in weighted tokens, what a ticket that was taken has cost its tenant; 0 refunds it."""

    def is_express(self, ticket: QueuedTicket) -> bool:
        """Tell whether a ticket that comes now goes before others of its class, its tenant being inside its share.

        Where it does not, none that differs in asking for more does.
        """

    def head(self) -> tuple[QueuedTicket, SortKey] | None:
        """Return the first ticket and how urgent it is."""

    def advance_virtual_time(self, priority: int, virtual_tokens: float) -> None:
        """Hear how far other shards have come: who comes to a class in which nobody waits is lifted to that.

        In virtual tokens. They never go back.
        """

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Return what is served before a ticket that arrives now."""

    def evictable(self, priority: int) -> TicketTotals:
        """Return what could make way for a ticket of this class."""

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        """Return the first to make way for a ticket of this class: of the lowest class the newest."""
