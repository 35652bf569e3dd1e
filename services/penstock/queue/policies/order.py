"""What the book asks of an order."""

from typing import NamedTuple, Protocol

from penstock.queue.waiting import WaitingTicket


class Key(NamedTuple):
    """How urgent a ticket is, lower first; comparable over shards."""

    priority: int
    virtual_tokens: float  # weighted service of its tenant so far; 0 where an order keeps none
    enqueued: float  # s


class Order(Protocol):
    """The waiting tickets of one model."""

    def push(self, ticket: WaitingTicket) -> None:
        """Add a ticket, new or given back; the same ticket finds its old place."""

    def remove(self, ticket: WaitingTicket) -> None:
        """Forget a ticket, wherever it stands."""

    def take(self, max_tokens: int) -> WaitingTicket | None:
        """Remove and return the first ticket that fits `max_tokens` (0: all fit), None when none may go."""

    def head(self) -> tuple[WaitingTicket, Key] | None:
        """The first ticket and how urgent it is."""

    def newest_below(self, priority: int) -> WaitingTicket | None:
        """The newest ticket of the lowest class, if that is lower than `priority`: the first to be evicted."""
