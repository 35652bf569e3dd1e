"""The state-of-the-world dialect of xDS, for one resource type on one stream."""

from dataclasses import dataclass, field

from penstock.routing.resources.types import Resource, ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.xds.subscription import WILDCARD, InFlightResponse, RequestKind, XdsResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class SotwRequest:
    type: ResourceType
    names: tuple[str, ...] = ()  # all that is wanted; empty means everything, unless names were given before
    nonce: str = ""  # of the answer this is about; empty until there was one
    error: str | None = None  # why that answer was refused


@dataclass(slots=True)
class SotwSubscription:
    type: ResourceType
    names: frozenset[str] = frozenset()
    is_wildcard: bool = False
    has_named_resources: bool = False  # names were given once: from then on, no names means nothing
    sent_version: str | None = None  # accepted or refused: either way not worth sending again
    in_flight: InFlightResponse = field(default_factory=InFlightResponse)

    def receive(self, request: SotwRequest) -> RequestKind:
        if request.nonce and request.nonce != self.in_flight.nonce:
            return RequestKind.STALE  # the ask about the newer answer repeats all the names
        verdict = (
            self.in_flight.acknowledged(is_nack=request.error is not None) if request.nonce else RequestKind.SUBSCRIBE
        )
        if self._update_names(frozenset(request.names)) or not request.nonce:
            self.sent_version = None
        return verdict

    def due(self, snapshot: Snapshot) -> XdsResponse | None:
        version = snapshot.versions[self.type]
        if self.in_flight.is_pending or version == self.sent_version or not (self.is_wildcard or self.names):
            return None
        self.sent_version = version
        return XdsResponse(
            type=self.type, version=version, nonce=self.in_flight.sent(), resources=self._wanted(snapshot)
        )

    def _update_names(self, names: frozenset[str]) -> bool:
        """Take over the names wanted now; true if one of them was not wanted before."""
        self.has_named_resources |= bool(names)
        had_all, had = self.is_wildcard, self.names
        self.is_wildcard = WILDCARD in names or not self.has_named_resources
        self.names = names - {WILDCARD}
        return (self.is_wildcard and not had_all) or not self.names <= had

    def _wanted(self, snapshot: Snapshot) -> tuple[Resource, ...]:
        named = snapshot.by_type[self.type]
        return tuple(resource for name, resource in named.items() if self.is_wildcard or name in self.names)
