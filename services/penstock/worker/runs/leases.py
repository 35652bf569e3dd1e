"""Which leases this worker was told to expect, which run, and which are over. Knows no clock and no stream."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.worker.runs.errors import LeaseLost

MAX_PAST_LEASES = 8_192  # leases; older ones are forgotten, and a START for one is then merely refused later


class LeaseGrant(NamedTuple):
    """What a lease was granted for, and where its ticket came from."""

    ticket_id: str
    attempt: int = 0
    queue_id: str = ""  # the shard; schedulers to come are told, so that it hears what the run was served
    is_express: bool = False


@dataclass(slots=True)
class LeaseTable:
    """A lease is unknown, expected, running or past, and only ever moves on in that order."""

    worker_id: str
    expected: dict[str, LeaseGrant] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    _past: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def __repr__(self) -> str:
        return f"<LeaseBook {len(self.expected)} expected, {len(self.running)} running>"

    def expect(self, lease_id: str, grant: LeaseGrant, worker_id: str) -> bool:
        """Note an announced lease. False when it is another's, runs already or is over."""
        if worker_id != self.worker_id or lease_id in self.running or lease_id in self._past:
            return False
        self.expected[lease_id] = grant
        return True

    def is_past(self, lease_id: str) -> bool:
        return lease_id in self._past

    def claim(self, lease_id: str, ticket_id: str) -> LeaseGrant | None:
        """Turn an expected lease into a running one; None when it may yet be announced. Raises LeaseLost."""
        if lease_id in self.running:
            raise LeaseLost(f"lease {lease_id} runs already, and a lease runs once")
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
        """Move a lease, in whatever state, to the past."""
        self.expected.pop(lease_id, None)
        self.running.discard(lease_id)
        self._past[lease_id] = None
        if len(self._past) > MAX_PAST_LEASES:
            self._past.popitem(last=False)
