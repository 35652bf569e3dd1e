"""The leases of this worker: expected, running and past. Knows no clock and no stream."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.mesh.prefill_rank import DEFAULT_RANK
from penstock.worker.runs.errors import LeaseLost

MAX_PAST_LEASES = 8_192  # leases; a START for an older one waits for an announcement and fails after the timeout


class LeaseGrant(NamedTuple):
    """The ticket that a lease was granted for, and the queue shard of that ticket."""

    ticket_id: str
    attempt: int = 0
    queue_id: str = ""  # the shard; reported to later schedulers, so that they report the run's progress to it
    prefill_rank: int = DEFAULT_RANK


@dataclass(slots=True)
class LeaseTable:
    """Each lease is unknown, expected, running or past, and moves only forwards in that order."""

    worker_id: str
    expected: dict[str, LeaseGrant] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    _past: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def __repr__(self) -> str:
        return f"<LeaseTable {len(self.expected)} expected, {len(self.running)} running>"

    def expect(self, lease_id: str, grant: LeaseGrant, worker_id: str) -> bool:
        """Record an announced lease. Return False if it is another worker's, is running or is past."""
        if worker_id != self.worker_id or lease_id in self.running or lease_id in self._past:
            return False
        self.expected[lease_id] = grant
        return True

    def is_past(self, lease_id: str) -> bool:
        return lease_id in self._past

    def claim(self, lease_id: str, ticket_id: str) -> LeaseGrant | None:
        """Turn an expected lease into a running one. Return None if it may still be announced. Raises LeaseLost."""
        if lease_id in self.running:
            raise LeaseLost(f"lease {lease_id} is already running, and a lease runs once")
        if lease_id in self._past:
            raise LeaseLost(f"lease {lease_id} has ended, lapsed or been revoked; enqueue the ticket again")
        expected = self.expected.get(lease_id)
        if expected is None:
            return None
        if expected.ticket_id != ticket_id:
            raise LeaseLost(f"lease {lease_id} was granted for another ticket")
        del self.expected[lease_id]
        self.running.add(lease_id)
        return expected

    def end(self, lease_id: str) -> None:
        """Mark a lease as past, from any state."""
        self.expected.pop(lease_id, None)
        self.running.discard(lease_id)
        self._past[lease_id] = None
        if len(self._past) > MAX_PAST_LEASES:
            self._past.popitem(last=False)
