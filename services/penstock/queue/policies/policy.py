"""Interface of scheduling policies, and the value types that it uses."""

from collections.abc import Callable
from enum import Enum
from math import inf
from typing import NamedTuple, Protocol

from penstock.queue.ticket import QueuedTicket


class SortKey(NamedTuple):
    """Sort key of a ticket, lower first. Keys can be compared over shards."""

    priority: int
    virtual_tokens: float  # virtual tokens of its tenant; 0 if the policy keeps none
    enqueued: float  # s
    lifted_tokens: float = 0.0  # part of the virtual tokens that was added to follow other shards


class TicketTotals(NamedTuple):
    """Totals of waiting tickets."""

    tickets: int
    tokens: int


NO_TICKETS = TicketTotals(0, 0)


class QueuePosition(NamedTuple):
    """Work that is served before a ticket. It may be an estimate."""

    tickets: float
    work: float  # tokens: prompt and predicted output
    # Work of tenants that wait, which goes before the ticket as well if these tenants go on to send tickets.
    later_tickets: float = 0.0
    later_work: float = 0.0
    virtual_tokens: float = inf  # by which the virtual time of its class advances until then; inf: none is kept


class ClassBacklog(NamedTuple):
    """The waiting tickets of one class."""

    tickets: int
    tenants: int = 0  # with a turn; 0: tenants have no turns
    # Tickets that are dispatched while the virtual time of the class advances by one token; 0: none is kept.
    tickets_per_virtual_token: float = 0.0


NO_BACKLOG = ClassBacklog(0)


class Fit(Enum):
    """Whether credit of a scheduler covers a ticket."""

    NOW = "now"
    LATER = "later"  # too large for the present credit: a limited number of other tickets may pass it
    NEVER = "never"  # not with this scheduler: other tickets pass it without limit


FitFn = Callable[[QueuedTicket], Fit]


class SchedulingPolicy(Protocol):
    """The order of the waiting tickets of one model."""

    @property
    def totals(self) -> TicketTotals: ...

    def push(self, ticket: QueuedTicket) -> None:
        """Add a new or returned ticket. A returned ticket gets its former place."""

    def remove(self, ticket: QueuedTicket) -> None:
        """Remove a ticket, listed or not."""

    def pop_fitting(self, fit: FitFn) -> QueuedTicket | None:
        """Remove and return the first ticket that fits now, and charge its tenant; None if no ticket may be taken."""

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """Set the cost of a taken ticket, in weighted tokens; 0 refunds it."""

    def is_express(self, ticket: QueuedTicket) -> bool:
        """Whether a ticket that arrives now is express, because its tenant's burst credit covers it.

        If it is not, a larger ticket of the tenant is not either.
        """

    def head(self) -> tuple[QueuedTicket, SortKey] | None:
        """Return the first ticket and its sort key; None if no ticket waits."""

    def advance_virtual_time(self, priority: int, virtual_tokens: float) -> None:
        """Apply the virtual time of other shards, which never decreases.

        A tenant that arrives in a class without waiting tickets is lifted to it.
        """

    def position_of(self, ticket: QueuedTicket) -> QueuePosition:
        """Return the work that is served before a ticket that arrives now."""

    def class_backlog(self, priority: int) -> ClassBacklog:
        """Return the waiting tickets of a class."""

    def evictable(self, priority: int) -> TicketTotals:
        """Return the totals of the tickets that a ticket of this class can evict."""

    def next_victim(self, priority: int) -> tuple[QueuedTicket, SortKey] | None:
        """Return the ticket that a ticket of this class evicts first: the newest of the lowest class; None if none."""
