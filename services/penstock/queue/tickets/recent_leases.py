"""Recently leased tickets, so that a withdrawal reaches the scheduler that placed the ticket."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from penstock.chassis.garbage import untracked
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
    _by_edge: dict[str, dict[str, None]] = field(default_factory=dict)  # tickets by edge; only edges with any
    _by_fingerprint: dict[int, dict[str, None]] = field(default_factory=dict)  # tickets, likewise; without unknown ones

    def __len__(self) -> int:
        return len(self._leases)

    def record(self, ticket: QueuedTicket, scheduler: str, now: float) -> None:
        self.expire(now)
        self.pop(ticket.ticket_id)
        lease = untracked(RecentLease(scheduler, ticket.edge, now + self.ttl, ticket.fingerprint))
        self._leases[ticket.ticket_id] = lease
        self._by_edge.setdefault(ticket.edge, {})[ticket.ticket_id] = None
        if ticket.fingerprint:
            self._by_fingerprint.setdefault(ticket.fingerprint, {})[ticket.ticket_id] = None

    def contains(self, ticket_id: str) -> bool:
        return ticket_id in self._leases

    def pop(self, ticket_id: str) -> str:
        """Remove a ticket and return the scheduler that placed it; empty if the lease is not recent."""
        lease = self._leases.pop(ticket_id, None)
        if lease is None:
            return ""
        _discard(self._by_edge, lease.edge, ticket_id)
        if lease.fingerprint:
            _discard(self._by_fingerprint, lease.fingerprint, ticket_id)
        return lease.scheduler

    def of_edge(self, edge: str) -> Iterator[str]:
        return iter(self._by_edge.get(edge, ()))

    def with_fingerprints(self, fingerprints: Iterable[int]) -> dict[str, RecentLease]:
        found = [ticket_id for each in fingerprints for ticket_id in self._by_fingerprint.get(each, ())]
        return {ticket_id: self._leases[ticket_id] for ticket_id in found}

    def expire(self, now: float) -> None:
        while self._leases and next(iter(self._leases.values())).expires_at <= now:
            self.pop(next(iter(self._leases)))


Key = TypeVar("Key", str, int)


def _discard(tickets_by_key: dict[Key, dict[str, None]], key: Key, ticket_id: str) -> None:
    tickets = tickets_by_key[key]
    del tickets[ticket_id]
    if not tickets:
        del tickets_by_key[key]
