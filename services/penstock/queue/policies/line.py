"""What a class asks of the order within it, and the simplest answer: one line for all its tenants."""

from collections.abc import Iterator
from typing import Protocol

from penstock.queue.policies.lane import Lane, Taken
from penstock.queue.policies.order import Ahead, FitOf
from penstock.queue.waiting import WaitingTicket


class Line(Protocol):
    """The tickets of one class that do not resume."""

    @property
    def tickets(self) -> int: ...

    @property
    def work(self) -> int:
        """Tokens, output as predicted."""

    @property
    def virtual_tokens(self) -> float:
        """Weighted service of the tenant whose turn it is; something must wait."""

    @property
    def lifted(self) -> float:
        """What virtual tokens have of `keep_up`."""

    def keep_up(self, virtual_tokens: float) -> None:
        """As `Order.keep_up`."""

    def __iter__(self) -> Iterator[WaitingTicket]:
        """Yield all in no particular order."""

    def push(self, ticket: WaitingTicket) -> None: ...

    def remove(self, ticket: WaitingTicket) -> None:
        """Forget a ticket that is listed here."""

    def first(self) -> WaitingTicket | None: ...

    def take(self, fit: FitOf) -> Taken: ...

    def ahead(self, ticket: WaitingTicket) -> Ahead: ...

    def charge(self, ticket: WaitingTicket, cost: float) -> None:
        """As `Order.charge`; also for a ticket of the class that resumes."""


class Together(Lane):
    """All tenants in one line: whoever sends most gets most."""

    __slots__ = ()

    @property
    def virtual_tokens(self) -> float:
        return 0.0

    @property
    def lifted(self) -> float:
        return 0.0

    def keep_up(self, virtual_tokens: float) -> None:
        """Keep no counters, so there is nothing to lift."""

    def charge(self, ticket: WaitingTicket, cost: float) -> None:
        ticket.charged = cost
