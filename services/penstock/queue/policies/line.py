"""What a class asks of the order within it, and the simplest answer: one line for all its tenants."""

import math
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
        """As `Order.charge`; also for a ticket of the class that resumes or is urgent."""

    def credit(self, tenant_id: str, most: float) -> float:
        """Return the virtual tokens, up to `most`, that a tenant's share came to beyond what it was served.

        Below 0 where it was served more; without bound where something of it waits in this line, or nobody counts.
        """

    def welcome(self, tenant_id: str) -> None:
        """Hear that a tenant has come that has nothing waiting: it has neither credit nor debt."""

    def passed(self, tenant_id: str) -> None:
        """Hear that a ticket of the tenant went that was not in this line."""


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

    def credit(self, tenant_id: str, most: float) -> float:
        return -math.inf

    def welcome(self, tenant_id: str) -> None:
        """Keep no counters, as `keep_up`."""

    def passed(self, tenant_id: str) -> None:
        """Likewise."""
