"""The state-of-the-world dialect of xDS, for one resource type on one stream."""

from dataclasses import dataclass, field

from penstock.routing.resource import Resource, ResourceType
from penstock.routing.snapshot import Snapshot
from penstock.routing.subscription import WILDCARD, Answer, Flight, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SotwAsk:
    type: ResourceType
    names: tuple[str, ...] = ()  # all that is wanted; empty means everything, unless names were given before
    nonce: str = ""  # of the answer this is about; empty until there was one
    error: str | None = None  # why that answer was refused


@dataclass(slots=True)
class SotwSubscription:
    type: ResourceType
    names: frozenset[str] = frozenset()
    is_wildcard: bool = False
    was_explicit: bool = False  # names were given once: from then on, no names means nothing
    answered_version: str | None = None  # accepted or refused: either way not worth sending again
    flight: Flight = field(default_factory=Flight)

    def receive(self, ask: SotwAsk) -> Verdict:
        if ask.nonce and ask.nonce != self.flight.nonce:
            return Verdict.STALE  # the ask about the newer answer repeats all the names
        verdict = self.flight.land(refused=ask.error is not None) if ask.nonce else Verdict.ASK
        if self._widen(frozenset(ask.names)) or not ask.nonce:
            self.answered_version = None
        return verdict

    def due(self, snapshot: Snapshot) -> Answer | None:
        version = snapshot.versions[self.type]
        if self.flight.is_open or version == self.answered_version or not (self.is_wildcard or self.names):
            return None
        self.answered_version = version
        return Answer(type=self.type, version=version, nonce=self.flight.launch(), resources=self._wanted(snapshot))

    def _widen(self, names: frozenset[str]) -> bool:
        """Take over the names wanted now; true if one of them was not wanted before."""
        self.was_explicit |= bool(names)
        had_all, had = self.is_wildcard, self.names
        self.is_wildcard = WILDCARD in names or not self.was_explicit
        self.names = names - {WILDCARD}
        return (self.is_wildcard and not had_all) or not self.names <= had

    def _wanted(self, snapshot: Snapshot) -> tuple[Resource, ...]:
        named = snapshot.by_type[self.type]
        return tuple(resource for name, resource in named.items() if self.is_wildcard or name in self.names)
