"""One stored response: its lease and its state. Knows no clock, no storage and no sealed bytes."""

from dataclasses import dataclass
from enum import Enum, IntEnum

from penstock.auth.responses.errors import ResponseLost

FIRST_EPOCH = 1
RELEASED = 0.0  # `lease_until` of a response that any edge may claim


class Status(IntEnum):
    """The states; the numbers are those of the contract and of the stored rows."""

    IN_PROGRESS = 1
    COMPLETED = 2
    INCOMPLETE = 3
    FAILED = 4
    CANCELLED = 5


class Lease(Enum):
    """What a holder learns about its lease."""

    HELD = "held"
    CANCEL_REQUESTED = "cancel requested"
    LOST = "lost"


class Placement(Enum):
    """How a part of the output continues the tokens that are stored."""

    NEXT = "next"  # it begins where they end
    STORED = "stored"  # all of its tokens are stored
    OVERLAPPING = "overlapping"  # it begins before their end and ends after it
    GAP = "gap"  # tokens before it are missing


@dataclass(slots=True)
class Response:
    """A response in progress has a lease. Its holder is the edge that knows `epoch`, until the next claim.

    A lease that has expired is still its holder's until another edge claims the response, unless a cancel was requested
    meanwhile: then the response ends.
    """

    tenant_id: str
    response_id: str
    previous_response_id: str  # empty: it begins a conversation
    is_background: bool
    created_at: float  # s
    expires_at: float  # s
    status: Status = Status.IN_PROGRESS
    epoch: int = FIRST_EPOCH  # of the latest lease
    lease_until: float = RELEASED  # s; of a response in progress
    is_cancel_requested: bool = False
    token_count: int = 0  # tokens of the output that are stored
    context_bytes: int = 0  # of the sealed request and output
    size: int = 0  # bytes that are counted for its tenant
    number: int = 0  # of its row

    @property
    def is_in_progress(self) -> bool:
        return self.status is Status.IN_PROGRESS

    def is_held(self, now: float) -> bool:
        return self.is_in_progress and now < self.lease_until

    def is_claimable(self, now: float) -> bool:
        return self.is_in_progress and now >= self.lease_until

    def lapse(self, now: float) -> bool:
        """Cancel it if a cancel was requested and its holder is late. Return whether that ended it."""
        has_ended = self.is_cancel_requested and self.is_claimable(now)
        if has_ended:
            self._cancel()
        return has_ended

    def is_holder(self, epoch: int) -> bool:
        return self.is_in_progress and epoch == self.epoch

    def extend(self, epoch: int, now: float, lease_s: float, *, release: bool = False) -> Lease:
        """Renew the lease of the holder, or end it with `release`."""
        self.lapse(now)
        if not self.is_holder(epoch):
            return Lease.LOST
        self.lease_until = RELEASED if release else now + lease_s
        return Lease.CANCEL_REQUESTED if self.is_cancel_requested else Lease.HELD

    def placement(self, first_index: int, count: int) -> Placement:
        """Return how a part of the output continues the stored tokens. An empty part is stored."""
        if first_index + count <= self.token_count or not count:
            return Placement.STORED
        if first_index == self.token_count:
            return Placement.NEXT
        return Placement.OVERLAPPING if first_index < self.token_count else Placement.GAP

    def check_finish(self, epoch: int, status: Status) -> bool:
        """Return whether a finish would end it; False if the same call has ended it before. Raises ResponseLost."""
        if self.is_holder(epoch):
            return True
        if epoch == self.epoch and status is self.status:
            return False
        raise ResponseLost(self.response_id)

    def finish(self, status: Status) -> None:
        self.status = status
        self.lease_until = RELEASED
        self.is_cancel_requested = False

    def cancel(self, now: float) -> None:
        """Request the cancel; cancel it at once if no edge holds it. No effect once it has ended."""
        if self.is_held(now):
            self.is_cancel_requested = True
        elif self.is_in_progress:
            self._cancel()

    def claim(self, now: float, lease_s: float) -> bool:
        """Give it to another edge. Return False if it is held or has ended."""
        self.lapse(now)
        if not self.is_claimable(now):
            return False
        self.epoch += 1
        self.lease_until = now + lease_s
        return True

    def _cancel(self) -> None:
        self.epoch += 1  # its former holder has lost it
        self.finish(Status.CANCELLED)
