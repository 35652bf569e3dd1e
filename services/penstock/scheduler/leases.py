"""The leases of one scheduler from issue to release. Knows no clock and no stream; `now` is in s."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class LeaseEntry:
    """One lease. A started one no longer lapses."""

    lease_id: str
    ticket_id: str
    queue: str  # stream of the shard that offered it
    worker: str  # stream of the worker
    prompt_tokens: int
    expires_at: float
    is_started: bool = False


@dataclass
class LeaseBook:
    """All leases. Ids are never used again, which fences frames of a run that has moved on."""

    ttl: float  # s
    prefix: str  # of lease ids, unique per start of the process
    leases: dict[str, LeaseEntry] = field(default_factory=dict)
    _by_ticket: dict[str, str] = field(default_factory=dict)  # the unstarted ones
    _issued: int = 0

    def __len__(self) -> int:
        return len(self.leases)

    @property
    def unstarted(self) -> int:
        return len(self._by_ticket)

    def issue(self, ticket_id: str, queue: str, worker: str, prompt_tokens: int, now: float) -> LeaseEntry:
        self._issued += 1
        entry = LeaseEntry(f"{self.prefix}-{self._issued}", ticket_id, queue, worker, prompt_tokens, now + self.ttl)
        self.leases[entry.lease_id] = entry
        self._by_ticket[ticket_id] = entry.lease_id
        return entry

    def start(self, lease_id: str) -> LeaseEntry | None:
        """Note that an edge started it; None when that is no news."""
        entry = self.leases.get(lease_id)
        if entry is None or entry.is_started:
            return None
        entry.is_started = True
        self._unlist(entry)
        return entry

    def end(self, lease_id: str) -> LeaseEntry | None:
        """Forget a lease, started or not."""
        entry = self.leases.pop(lease_id, None)
        if entry:
            self._unlist(entry)
        return entry

    def unstarted_of(self, ticket_id: str) -> LeaseEntry | None:
        lease_id = self._by_ticket.get(ticket_id)
        return self.leases[lease_id] if lease_id else None

    def of_worker(self, worker: str) -> list[LeaseEntry]:
        return [entry for entry in self.leases.values() if entry.worker == worker]

    def lapsed(self, now: float) -> Iterator[LeaseEntry]:
        """Unstarted leases whose time is over, oldest first; the caller ends them."""
        return iter(
            [entry for entry in map(self.leases.__getitem__, self._by_ticket.values()) if entry.expires_at <= now]
        )

    def _unlist(self, entry: LeaseEntry) -> None:
        if self._by_ticket.get(entry.ticket_id) == entry.lease_id:
            del self._by_ticket[entry.ticket_id]
