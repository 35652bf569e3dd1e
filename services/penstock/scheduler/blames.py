"""Whom workers blame for their crashed engines. Knows no stream; `now` is in s on any clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.chassis.durations import seconds_of
from penstock.mesh.v1.ticket_pb2 import Blame


@dataclass(slots=True)
class BlameBook:
    """A worker takes nothing while it finds out, and may be out of hearing: what it said holds until it says something
    else, be it as a new process at the same address that has forgotten, or until its time is over.
    """

    _said: dict[str, dict[int, tuple[bool, float]]] = field(default_factory=dict)  # guilt, and until when, by address

    def hear(self, address: str, blames: Iterable[Blame], now: float) -> bool:
        """Take it for all that the worker suspects; who was guilty stays so. False where that is nothing new."""
        known = self._said.pop(address, {})
        said = {key: each for key, each in known.items() if each[0]}
        said |= {each.fingerprint: (each.is_guilty, now + (seconds_of(each.lasts) or 0.0)) for each in blames}
        if said:
            self._said[address] = said
        return {key: guilt for key, (guilt, _) in said.items()} != {key: guilt for key, (guilt, _) in known.items()}

    def names(self, fingerprint: int) -> bool:
        return any(fingerprint in said for said in self._said.values())

    def expire(self, now: float) -> bool:
        """Forget what is over; False where nothing is."""
        over = [
            (address, key) for address, said in self._said.items() for key, (_, until) in said.items() if until <= now
        ]
        for address, key in over:
            del self._said[address][key]
        self._said = {address: said for address, said in self._said.items() if said}
        return bool(over)

    def all(self) -> tuple[Blame, ...]:
        """Return everybody once; guilty where any worker says so."""
        found: dict[int, bool] = {}
        for said in self._said.values():
            for key, (is_guilty, _) in said.items():
                found[key] = is_guilty or found.get(key, False)
        return tuple(Blame(fingerprint=key, is_guilty=is_guilty) for key, is_guilty in found.items())
