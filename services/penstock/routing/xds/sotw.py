"""The state-of-the-world variant of xDS, for one resource type on one stream."""

from dataclasses import dataclass, field

from penstock.routing.resources.types import Resource, ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.xds.subscription import WILDCARD, InFlightResponse, RequestKind, XdsResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class SotwRequest:
    type: ResourceType
    names: tuple[str, ...] = ()  # all subscribed names; empty: all resources, unless names were sent before
    nonce: str = ""  # of the response that this request acknowledges; empty before the first response
    error: str | None = None  # the reason of a NACK


@dataclass(slots=True)
class SotwSubscription:
    type: ResourceType
    names: frozenset[str] = frozenset()
    is_wildcard: bool = False
    has_named_resources: bool = False  # names were sent once; from then on, an empty list subscribes to none
    sent_version: str | None = None  # not sent again, whether the proxy accepted or rejected it
    in_flight: InFlightResponse = field(default_factory=InFlightResponse)

    def receive(self, request: SotwRequest) -> RequestKind:
        if request.nonce and request.nonce != self.in_flight.nonce:
            return RequestKind.STALE  # the request about the newer response repeats all names
        is_nack = request.error is not None
        kind = self.in_flight.acknowledged(is_nack=is_nack) if request.nonce else RequestKind.SUBSCRIBE
        if self._update_names(frozenset(request.names)) or not request.nonce:
            self.sent_version = None
        return kind

    def due(self, snapshot: Snapshot) -> XdsResponse | None:
        version = snapshot.versions[self.type]
        if self.in_flight.is_pending or version == self.sent_version or not (self.is_wildcard or self.names):
            return None
        self.sent_version = version
        return XdsResponse(
            type=self.type, version=version, nonce=self.in_flight.sent(), resources=self._wanted(snapshot)
        )

    def _update_names(self, names: frozenset[str]) -> bool:
        """Replace the subscribed names. Return True if one of them is new."""
        self.has_named_resources |= bool(names)
        had_all, had = self.is_wildcard, self.names
        self.is_wildcard = WILDCARD in names or not self.has_named_resources
        self.names = names - {WILDCARD}
        return (self.is_wildcard and not had_all) or not self.names <= had

    def _wanted(self, snapshot: Snapshot) -> tuple[Resource, ...]:
        named = snapshot.by_type[self.type]
        return tuple(resource for name, resource in named.items() if self.is_wildcard or name in self.names)
