"""The incremental dialect of xDS, for one resource type on one stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.routing.resource import Resource, ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.subscription import WILDCARD, Answer, Flight, Verdict

ABSENT = ""  # version of a resource the proxy was told does not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaAsk:
    type: ResourceType
    subscribe: tuple[str, ...] = ()
    unsubscribe: tuple[str, ...] = ()
    initial_versions: Mapping[str, str] = field(default_factory=dict)  # held from an earlier stream; first ask only
    nonce: str = ""
    error: str | None = None


@dataclass(slots=True)
class DeltaSubscription:
    type: ResourceType
    names: set[str] = field(default_factory=set)
    is_wildcard: bool = False
    known: dict[str, str] = field(default_factory=dict)  # name -> version the proxy holds, or was sent
    is_open: bool = False  # had its first ask
    owes_first: bool = False  # a wildcard is answered once even if empty, or the proxy would wait for its start
    flight: Flight = field(default_factory=Flight)

    def receive(self, ask: DeltaAsk) -> Verdict:
        verdict = self._land(ask)
        if not self.is_open:
            self._open(ask)
        else:
            self._subscribe(ask.subscribe)
        self._unsubscribe(ask.unsubscribe)
        return verdict

    def due(self, snapshot: Snapshot) -> Answer | None:
        if self.flight.is_open or not self.is_open:
            return None
        changed, removed = self._changed(snapshot), self._removed(snapshot)
        if not (changed or removed or self.owes_first):
            return None
        self._remember(changed, removed)
        return Answer(
            type=self.type,
            version=snapshot.versions[self.type],
            nonce=self.flight.launch(),
            resources=changed,
            removed=removed,
        )

    def _land(self, ask: DeltaAsk) -> Verdict:
        if not ask.nonce:
            return Verdict.ASK
        if ask.nonce != self.flight.nonce:
            return Verdict.STALE  # unlike in SotW its names still count: they are said only once
        return self.flight.land(refused=ask.error is not None)

    def _open(self, ask: DeltaAsk) -> None:
        self.is_open = True
        self.is_wildcard = self.owes_first = not ask.subscribe or WILDCARD in ask.subscribe
        self.names = set(ask.subscribe) - {WILDCARD}
        self.known = {name: version for name, version in ask.initial_versions.items() if self._wants(name)}

    def _subscribe(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name == WILDCARD:
                self.owes_first |= not self.is_wildcard
                self.is_wildcard = True
            else:
                self.names.add(name)
                self.known.pop(name, None)  # asking again means: send it again

    def _unsubscribe(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name == WILDCARD:
                self.is_wildcard = False
                self.known = {known: version for known, version in self.known.items() if known in self.names}
            else:
                self.names.discard(name)
                self.known.pop(name, None)  # under a wildcard it is still wanted, and the protocol wants it said again

    def _wants(self, name: str) -> bool:
        return self.is_wildcard or name in self.names

    def _changed(self, snapshot: Snapshot) -> tuple[Resource, ...]:
        return tuple(
            resource
            for name, resource in snapshot.by_type[self.type].items()
            if self._wants(name) and self.known.get(name) != resource.version
        )

    def _removed(self, snapshot: Snapshot) -> tuple[str, ...]:
        there = snapshot.by_type[self.type].keys()
        gone = (self.known.keys() | self.names) - there
        return tuple(sorted(name for name in gone if self.known.get(name) != ABSENT))

    def _remember(self, changed: tuple[Resource, ...], removed: tuple[str, ...]) -> None:
        self.owes_first = False
        self.known.update({resource.name: resource.version for resource in changed})
        for name in removed:
            self.known.pop(name, None)
            if name in self.names:
                self.known[name] = ABSENT
