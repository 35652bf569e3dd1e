"""Types that the subscriptions of both xDS variants share. A subscription is one resource type on one proxy's stream.

The variants are `sotw.py` (state of the world: each response has all resources) and `delta.py` (each response has the
changes). Neither knows a message class, a socket or a clock: a request enters, and its kind and at most one response
leave.

At most one response per type is in flight. A proxy that is slow to acknowledge delays only its own pushes. Changes that
occur meanwhile are merged into the next response, so nothing queues.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from penstock.routing.resources.types import Resource, ResourceType

WILDCARD = "*"


class RequestKind(Enum):
    """The meaning of a request from a proxy."""

    SUBSCRIBE = auto()  # a change of the subscribed names, or the first request
    ACK = auto()
    NACK = auto()  # the proxy rejected the last response and keeps its previous configuration
    STALE = auto()  # refers to a response that is not the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class XdsResponse:
    type: ResourceType
    version: str
    nonce: str
    resources: tuple[Resource, ...]
    removed: tuple[str, ...] = ()  # delta only; in SotW an absent resource is removed


@dataclass(slots=True)
class InFlightResponse:
    """The last response sent, and whether the proxy has yet to acknowledge it."""

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
        """Record an ACK or NACK. A second request about the same response is only a change of the subscribed names."""
        if not self.is_pending:
            return RequestKind.SUBSCRIBE
        self.is_pending = False
        return RequestKind.NACK if is_nack else RequestKind.ACK
