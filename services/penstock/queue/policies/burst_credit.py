"""Burst credit: tickets of tenants that use less than their share are dispatched first in their class.

A tenant earns credit for the part of its share that it does not use while other tenants have a backlog, and spends
credit on the service that it receives. Credit is measured by the virtual time of start-time fair queueing (Goyal et al.
1996), which is the service of each tenant with a backlog. It does not advance while no tenant has a backlog, because no
share is defined then. The virtual time of other shards does not count: it arrives late and in steps, so that tenants
with a backlog would earn credit from one another.
"""

from dataclasses import dataclass

from penstock.queue.policies.cost import predicted_cost
from penstock.queue.policies.ranked_queue import RankedQueue
from penstock.queue.ticket import QueuedTicket

# Largest credit of a tenant, in tickets of mean cost. A Poisson stream at half its share has no use for more, and other
# tenants are delayed by at most this many tickets when the credit is spent at once.
MAX_CREDIT_TICKETS = 16.0
MEAN_COST_GAIN = 1 / 64  # weight of the latest ticket in the mean cost


@dataclass(slots=True)
class VirtualClock:
    """Virtual time that passes only while tenants wait. `virtual_time` is that of `WeightedVtc`."""

    _elapsed_before: float = 0.0
    _began_at: float | None = None  # virtual time at which tenants began to wait; None: none waits

    def now(self, virtual_time: float) -> float:
        return self._elapsed_before if self._began_at is None else self._elapsed_before + virtual_time - self._began_at

    def start(self, virtual_time: float) -> None:
        self._began_at = virtual_time

    def stop(self, virtual_time: float) -> None:
        self._elapsed_before, self._began_at = self.now(virtual_time), None


class ExpressLane(RankedQueue):
    """Express tickets of one class, first come, first served.

    A ticket is express if its tenant's credit covers it together with the express tickets of the tenant that wait.
    Over any period, the express tickets of a tenant therefore cost at most its share of the service plus the largest
    credit. Splitting a burst gains nothing, because waiting express tickets count as charged.
    """

    __slots__ = ("_mean_cost", "_queued_by_tenant")

    def __init__(self) -> None:
        super().__init__()
        self._mean_cost = 0.0  # weighted tokens of a ticket; 0: none was taken yet
        self._queued_by_tenant: dict[str, tuple[int, float]] = {}  # waiting tickets and virtual tokens, by tenant

    def has_tenant(self, tenant_id: str) -> bool:
        return tenant_id in self._queued_by_tenant

    def queued_cost_with(self, ticket: QueuedTicket) -> float:
        """Return the virtual tokens of the tenant's waiting express tickets and this ticket together."""
        _, pending = self._queued_by_tenant.get(ticket.tenant_id, (0, 0.0))
        return pending + _normalized_cost(ticket)

    def max_credit(self, ticket: QueuedTicket) -> float:
        """Return the largest credit of the ticket's tenant, in virtual tokens."""
        return MAX_CREDIT_TICKETS * self._mean_cost / ticket.weight

    def record_size(self, ticket: QueuedTicket) -> None:
        """Add a taken ticket to the mean cost, express or not."""
        self._mean_cost += (predicted_cost(ticket) - self._mean_cost) * (MEAN_COST_GAIN if self._mean_cost else 1.0)

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        super()._adjust_totals(ticket, sign)
        tickets, virtual = self._queued_by_tenant.pop(ticket.tenant_id, (0, 0.0))
        if tickets + sign:
            self._queued_by_tenant[ticket.tenant_id] = tickets + sign, virtual + sign * _normalized_cost(ticket)


def _normalized_cost(ticket: QueuedTicket) -> float:
    return predicted_cost(ticket) / ticket.weight
