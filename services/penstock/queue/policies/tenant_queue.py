"""What a class asks of the order within it, and the simplest answer: one line for all its tenants."""

import math
from collections.abc import Iterator
from typing import Protocol

from penstock.queue.policies.policy import FitFn, QueuePosition
from penstock.queue.policies.ranked_queue import RankedQueue, TakeResult
from penstock.queue.ticket import QueuedTicket


class TenantQueue(Protocol):
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
    def lifted_tokens(self) -> float:
        """What virtual tokens have of `keep_up`."""

    def advance_virtual_time(self, virtual_tokens: float) -> None:
        """As `Order.keep_up`."""

    def __iter__(self) -> Iterator[QueuedTicket]:
        """Yield all in no particular order."""

    def push(self, ticket: QueuedTicket) -> None: ...

    def remove(self, ticket: QueuedTicket) -> None:
        """Forget a ticket that is listed here."""

    def first(self) -> QueuedTicket | None: ...

    def pop_fitting(self, fit: FitFn) -> TakeResult: ...

    def position_of(self, ticket: QueuedTicket) -> QueuePosition: ...

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """As `Order.charge`; also for a ticket of the class that resumes or is urgent."""

    def burst_credit(self, tenant_id: str, max_credit: float) -> float:
        """Return the virtual tokens, up to `most`, that a tenant's share came to beyond what it was served.

        Below 0 where it was served more; without bound where something of it waits in this line, or nobody counts.
        """

    def on_tenant_arrived(self, tenant_id: str) -> None:
        """Hear that a tenant has come that has nothing waiting: it has neither credit nor debt."""

    def on_expedited_taken(self, tenant_id: str) -> None:
        """Hear that a ticket of the tenant went that was not in this line."""


class SharedQueue(RankedQueue):
    """All tenants in one line: whoever sends most gets most."""

    __slots__ = ()

    @property
    def virtual_tokens(self) -> float:
        return 0.0

    @property
    def lifted_tokens(self) -> float:
        return 0.0

    def advance_virtual_time(self, virtual_tokens: float) -> None:
        """Keep no counters, so there is nothing to lift."""

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        ticket.charged_cost = cost

    def burst_credit(self, tenant_id: str, max_credit: float) -> float:
        return -math.inf

    def on_tenant_arrived(self, tenant_id: str) -> None:
        """Keep no counters, as `keep_up`."""

    def on_expedited_taken(self, tenant_id: str) -> None:
        """Likewise."""
