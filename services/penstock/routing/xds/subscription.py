"""What one proxy wants of one resource type on one stream: the words both xDS dialects share.

The dialects are `sotw.py` (state of the world: each answer is everything) and `delta.py` (each answer is what changed).
Neither knows a message class, a socket or a clock: an ask comes in, a verdict and at most one answer go out.

At most one answer per type is in flight. A proxy that is slow to acknowledge holds back its own pushes only, and what
changes meanwhile is one answer later: nothing queues.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from penstock.routing.resources.types import Resource, ResourceType

WILDCARD = "*"


class RequestKind(Enum):
    """What a frame from a proxy meant."""

    SUBSCRIBE = auto()  # a change of interest, or the first frame
    ACK = auto()
    NACK = auto()  # the proxy refused the last answer and goes on with what it had
    STALE = auto()  # about an answer that a later one has overtaken


@dataclass(frozen=True, slots=True, kw_only=True)
class XdsResponse:
    type: ResourceType
    version: str
    nonce: str
    resources: tuple[Resource, ...]
    removed: tuple[str, ...] = ()  # delta only; in SotW what is absent is removed


@dataclass(slots=True)
class InFlightResponse:
    """The answer that was sent last, and whether the proxy has spoken about it."""

    last_nonce: int = field(default=0)
    is_pending: bool = field(default=False)

    @property
    def nonce(self) -> str:
        return str(self.last_nonce) if self.last_nonce else ""

    def sent(self) -> str:
        self.last_nonce += 1
        self.is_pending = True
        return self.nonce

    def acknowledged(self, *, is_nack: bool) -> RequestKind:
        """Close the flight; a second word about the same answer is only a change of interest."""
        if not self.is_pending:
            return RequestKind.SUBSCRIBE
        self.is_pending = False
        return RequestKind.NACK if is_nack else RequestKind.ACK
