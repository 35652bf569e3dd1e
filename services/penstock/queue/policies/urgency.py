"""Tickets of tenants that are inside their shares: the first of their class, whoever else has a backlog.

A tenant earns credit by what its share came to while others had a backlog, and spends it by what it is served. The
clock of that is the virtual time of start-time fair queueing (Goyal et al. 1996), which is what each tenant with a
backlog has come to; while none has, nobody's share can be told, and it stands still. Other shards' time does not
count: it comes late and in jumps, by which tenants that all have a backlog would earn credit from one another.
"""

from dataclasses import dataclass

from penstock.queue.policies.cost import predicted_cost
from penstock.queue.policies.lane import Lane
from penstock.queue.waiting import WaitingTicket

# Tickets of the mean size that a tenant's credit may come to: more is of no use to a Poisson stream at half its share,
# and others are delayed by no more than these take when it is spent at once.
MOST = 16.0
MEMORY = 1 / 64  # weight of the last ticket in that mean


@dataclass(slots=True)
class Clock:
    """Virtual time that passes only while tenants wait; `floor` as `FairTenants.floor` has it."""

    _before: float = 0.0
    _began: float | None = None  # the floor when the first came that waits; None: nobody waits

    def now(self, floor: float) -> float:
        return self._before if self._began is None else self._before + floor - self._began

    def begin(self, floor: float) -> None:
        self._began = floor

    def end(self, floor: float) -> None:
        self._before, self._began = self.now(floor), None


class UrgentLane(Lane):
    """First come first served.

    A ticket is urgent where its tenant's credit covers it and all else of the tenant that waits. So over any span the
    urgent tickets of a tenant cost no more than its share of what is served then and the most that credit comes to.
    Small bursts win it nothing: what waits counts as charged before the next is judged.
    """

    __slots__ = ("_mean", "_pending")

    def __init__(self) -> None:
        super().__init__()
        self._mean = 0.0  # weighted tokens of a ticket; 0: none went yet
        self._pending: dict[str, tuple[int, float]] = {}  # tickets and virtual tokens that wait here, by tenant

    def has(self, tenant_id: str) -> bool:
        return tenant_id in self._pending

    def costs_with(self, ticket: WaitingTicket) -> float:
        """Return the virtual tokens of all that would wait here of the tenant with this ticket."""
        _, pending = self._pending.get(ticket.tenant_id, (0, 0.0))
        return pending + _virtual(ticket)

    def most(self, ticket: WaitingTicket) -> float:
        """Return the virtual tokens that the credit of the ticket's tenant may come to."""
        return MOST * self._mean / ticket.weight

    def note(self, ticket: WaitingTicket) -> None:
        """Hear how large a ticket is that went, from here or not."""
        self._mean += (predicted_cost(ticket) - self._mean) * (MEMORY if self._mean else 1.0)

    def _count(self, ticket: WaitingTicket, sign: int) -> None:
        super()._count(ticket, sign)
        tickets, virtual = self._pending.pop(ticket.tenant_id, (0, 0.0))
        if tickets + sign:
            self._pending[ticket.tenant_id] = tickets + sign, virtual + sign * _virtual(ticket)


def _virtual(ticket: WaitingTicket) -> float:
    return predicted_cost(ticket) / ticket.weight
