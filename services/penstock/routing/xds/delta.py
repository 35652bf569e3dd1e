"""The incremental variant of xDS, for one resource type on one stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.routing.resources.types import Resource, ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.xds.subscription import WILDCARD, InFlightResponse, RequestKind, XdsResponse

ABSENT_VERSION = ""  # version of a resource that was reported to the proxy as removed


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRequest:
    type: ResourceType
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=dict)  # first request only: held from earlier streams
    nonce: str = ""
    error: str | None = None


@dataclass(slots=True)
class DeltaSubscription:
    type: ResourceType
    names: set[str] = field(default_factory=set)
    is_wildcard: bool = False
    sent_versions: dict[str, str] = field(default_factory=dict)  # name -> version the proxy holds, or was sent
    has_started: bool = False  # received its first request
    # A wildcard gets one response even if that is empty, because the proxy's start waits for it.
    is_first_response_due: bool = False
    in_flight: InFlightResponse = field(default_factory=InFlightResponse)

    def receive(self, request: DeltaRequest) -> RequestKind:
        kind = self._acknowledge(request)
        if not self.has_started:
            self._start(request)
        else:
            self._subscribe(request.subscribe)
        self._unsubscribe(request.unsubscribe)
        return kind

    def due(self, snapshot: Snapshot) -> XdsResponse | None:
        if self.in_flight.is_pending or not self.has_started:
            return None
        changed, removed = self._changed(snapshot), self._removed(snapshot)
        if not (changed or removed or self.is_first_response_due):
            return None
        self._record_sent(changed, removed)
        return XdsResponse(
            type=self.type,
            version=snapshot.versions[self.type],
            nonce=self.in_flight.sent(),
            resources=changed,
            removed=removed,
        )

    def _acknowledge(self, request: DeltaRequest) -> RequestKind:
        if not request.nonce:
            return RequestKind.SUBSCRIBE
        if request.nonce != self.in_flight.nonce:
            return RequestKind.STALE  # unlike in SotW its names still count, as each is sent only once
        return self.in_flight.acknowledged(is_nack=request.error is not None)

    def _start(self, request: DeltaRequest) -> None:
        self.has_started = True
        self.is_wildcard = self.is_first_response_due = not request.subscribe or WILDCARD in request.subscribe
        self.names = set(request.subscribe) - {WILDCARD}
        self.sent_versions = {name: version for name, version in request.initial_versions.items() if self._wants(name)}

    def _subscribe(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name == WILDCARD:
                self.is_first_response_due |= not self.is_wildcard
                self.is_wildcard = True
            else:
                self.names.add(name)
                self.sent_versions.pop(name, None)  # a repeated subscription asks for another copy

    def _unsubscribe(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name == WILDCARD:
                self.is_wildcard = False
                self.sent_versions = {
                    known: version for known, version in self.sent_versions.items() if known in self.names
                }
            else:
                self.names.discard(name)
                # Under a wildcard the resource is still subscribed, and the protocol requires that it is sent again.
                self.sent_versions.pop(name, None)

    def _wants(self, name: str) -> bool:
        return self.is_wildcard or name in self.names

    def _changed(self, snapshot: Snapshot) -> tuple[Resource, ...]:
        return tuple(
            resource
            for name, resource in snapshot.by_type[self.type].items()
            if self._wants(name) and self.sent_versions.get(name) != resource.version
        )

    def _removed(self, snapshot: Snapshot) -> tuple[str, ...]:
        present = snapshot.by_type[self.type].keys()
        absent = (self.sent_versions.keys() | self.names) - present
        return tuple(sorted(name for name in absent if self.sent_versions.get(name) != ABSENT_VERSION))

    def _record_sent(self, changed: tuple[Resource, ...], removed: tuple[str, ...]) -> None:
        self.is_first_response_due = False
        self.sent_versions.update({resource.name: resource.version for resource in changed})
        for name in removed:
            self.sent_versions.pop(name, None)
            if name in self.names:
                self.sent_versions[name] = ABSENT_VERSION
