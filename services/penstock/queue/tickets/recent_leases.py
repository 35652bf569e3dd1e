"""Recently leased tickets, so that a withdrawal reaches the scheduler that placed the ticket."""

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.queue.ticket import QueuedTicket


class RecentLease(NamedTuple):
    """A lease that was granted within the last `ttl` seconds."""

    scheduler: str
    edge: str
    expires_at: float  # s
    fingerprint: int


@dataclass(slots=True)
class RecentLeases:
    """Recent leases by ticket. Each expires after `ttl` seconds, when it was started or has expired at its worker."""

    ttl: float  # s; above the lease TTL of schedulers
    _leases: OrderedDict[str, RecentLease] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._leases)

    def record(self, ticket: QueuedTicket, scheduler: str, now: float) -> None:
        self._leases[ticket.ticket_id] = RecentLease(scheduler, ticket.edge, now + self.ttl, ticket.fingerprint)
        self._leases.move_to_end(ticket.ticket_id)

    def contains(self, ticket_id: str) -> bool:
        return ticket_id in self._leases

    def pop(self, ticket_id: str) -> str:
        """Remove a ticket and return the scheduler that placed it; empty if the lease is not recent."""
        lease = self._leases.pop(ticket_id, None)
        return lease.scheduler if lease else ""

    def of_edge(self, edge: str) -> list[str]:
        return [ticket_id for ticket_id, each in self._leases.items() if each.edge == edge]

    def with_fingerprints(self, fingerprints: Container[int]) -> dict[str, RecentLease]:
        return {key: each for key, each in self._leases.items() if each.fingerprint in fingerprints}

    def expire(self, now: float) -> None:
        while self._leases and next(iter(self._leases.values())).expires_at <= now:
            self._leases.popitem(last=False)
