"""Tickets of tenants that are inside their shares: the first of their class, whoever else has a backlog.

A tenant earns credit by what its share came to while others had a backlog, and spends it by what it is served. The
clock of that is the virtual time of start-time fair queueing (Goyal et al. 1996), which is what each tenant with a
backlog has come to; while none has, nobody's share can be told, and it stands still. Other shards' time does not
count: it comes late and in jumps, by which tenants that all have a backlog would earn credit from one another.
"""

from dataclasses import dataclass

from penstock.queue.policies.cost import predicted_cost
from penstock.queue.policies.ranked_queue import RankedQueue
from penstock.queue.ticket import QueuedTicket

# Tickets of the mean size that a tenant's credit may come to: more is of no use to a Poisson stream at half its share,
# and others are delayed by no more than these take when it is spent at once.
MAX_CREDIT_TICKETS = 16.0
MEAN_COST_GAIN = 1 / 64  # weight of the last ticket in that mean


@dataclass(slots=True)
class VirtualClock:
    """Virtual time that passes only while tenants wait; `floor` as `FairTenants.floor` has it."""

    _elapsed_before: float = 0.0
    _began_at: float | None = None  # the floor when the first came that waits; None: nobody waits

    def now(self, virtual_time: float) -> float:
        return self._elapsed_before if self._began_at is None else self._elapsed_before + virtual_time - self._began_at

    def start(self, virtual_time: float) -> None:
        self._began_at = virtual_time

    def stop(self, virtual_time: float) -> None:
        self._elapsed_before, self._began_at = self.now(virtual_time), None


class ExpressLane(RankedQueue):
    """First come first served.

    A ticket is urgent where its tenant's credit covers it and all else of the tenant that waits. So over any span the
    urgent tickets of a tenant cost no more than its share of what is served then and the most that credit comes to.
    Small bursts win it nothing: what waits counts as charged before the next is judged.
    """

    __slots__ = ("_mean_cost", "_queued_by_tenant")

    def __init__(self) -> None:
        super().__init__()
        self._mean_cost = 0.0  # weighted tokens of a ticket; 0: none went yet
        self._queued_by_tenant: dict[
            str, tuple[int, float]
        ] = {}  # tickets and virtual tokens that wait here, by tenant

    def has_tenant(self, tenant_id: str) -> bool:
        return tenant_id in self._queued_by_tenant

    def queued_cost_with(self, ticket: QueuedTicket) -> float:
        """Return the virtual tokens of all that would wait here of the tenant with this ticket."""
        _, pending = self._queued_by_tenant.get(ticket.tenant_id, (0, 0.0))
        return pending + _normalized_cost(ticket)

    def max_credit(self, ticket: QueuedTicket) -> float:
        """Return the virtual tokens that the credit of the ticket's tenant may come to."""
        return MAX_CREDIT_TICKETS * self._mean_cost / ticket.weight

    def record_size(self, ticket: QueuedTicket) -> None:
        """Hear how large a ticket is that went, from here or not."""
        self._mean_cost += (predicted_cost(ticket) - self._mean_cost) * (MEAN_COST_GAIN if self._mean_cost else 1.0)

    def _adjust_totals(self, ticket: QueuedTicket, sign: int) -> None:
        super()._adjust_totals(ticket, sign)
        tickets, virtual = self._queued_by_tenant.pop(ticket.tenant_id, (0, 0.0))
        if tickets + sign:
            self._queued_by_tenant[ticket.tenant_id] = tickets + sign, virtual + sign * _normalized_cost(ticket)


def _normalized_cost(ticket: QueuedTicket) -> float:
    return predicted_cost(ticket) / ticket.weight
