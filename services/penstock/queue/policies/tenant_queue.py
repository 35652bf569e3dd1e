"""Interface of the order between tenants of one class, and its simplest form: one queue for all tenants."""

import math
from collections.abc import Iterator
from typing import Protocol

from penstock.queue.policies.policy import FitFn, QueuePosition
from penstock.queue.policies.ranked_queue import RankedQueue, TakeResult
from penstock.queue.ticket import QueuedTicket


class TenantQueue(Protocol):
    """Tickets of one class that are not expedited."""

    @property
    def tickets(self) -> int: ...

    @property
    def work(self) -> int:
        """Tokens: prompt and predicted output."""

    @property
    def virtual_tokens(self) -> float:
        """Virtual tokens of the tenant whose turn it is. At least one ticket must wait."""

    @property
    def lifted_tokens(self) -> float:
        """Part of the virtual tokens that was added to follow other shards."""

    @property
    def waiting_tenants(self) -> int:
        """See `ClassBacklog`."""

    @property
    def tickets_per_virtual_token(self) -> float:
        """See `ClassBacklog`."""

    def advance_virtual_time(self, virtual_tokens: float) -> None:
        """See `SchedulingPolicy`."""

    def __iter__(self) -> Iterator[QueuedTicket]:
        """Yield the tickets in no particular order."""

    def push(self, ticket: QueuedTicket) -> None: ...

    def remove(self, ticket: QueuedTicket) -> None:
        """Remove a ticket that is listed here."""

    def first(self) -> QueuedTicket | None: ...

    def pop_fitting(self, fit: FitFn) -> TakeResult: ...

    def position_of(self, ticket: QueuedTicket) -> QueuePosition: ...

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        """See `SchedulingPolicy`; also for expedited tickets of the class."""

    def burst_credit(self, tenant_id: str, max_credit: float) -> float:
        """Return the burst credit of a tenant, at most `max_credit` virtual tokens.

        It is negative if the tenant was served more than its share, and minus infinity if tickets of the tenant wait
        in this queue or if no service is counted.
        """

    def on_tenant_arrived(self, tenant_id: str) -> None:
        """Lift a tenant without waiting tickets to the virtual time, with neither credit nor debt."""

    def on_expedited_taken(self, tenant_id: str) -> None:
        """Record that an expedited ticket of the tenant was taken."""


class SharedQueue(RankedQueue):
    """One queue for all tenants: the tenant that sends most is served most."""

    __slots__ = ()

    @property
    def virtual_tokens(self) -> float:
        return 0.0

    @property
    def lifted_tokens(self) -> float:
        return 0.0

    @property
    def waiting_tenants(self) -> int:
        return 0

    @property
    def tickets_per_virtual_token(self) -> float:
        return 0.0

    def advance_virtual_time(self, virtual_tokens: float) -> None:
        """Do nothing, because no counters are kept."""

    def charge(self, ticket: QueuedTicket, cost: float) -> None:
        ticket.charged_cost = cost

    def burst_credit(self, tenant_id: str, max_credit: float) -> float:
        return -math.inf

    def on_tenant_arrived(self, tenant_id: str) -> None:
        """Do nothing, because no counters are kept."""

    def on_expedited_taken(self, tenant_id: str) -> None:
        """Do nothing, because no counters are kept."""
