"""Whom workers blame for their crashed engines. Knows no stream; `now` is in s on any clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.chassis.durations import seconds_of
from penstock.mesh.v1.ticket_pb2 import PoisonReport


@dataclass(slots=True)
class PoisonReports:
    """A worker takes nothing while it finds out, and may be out of hearing: what it said holds until it says something
    else, be it as a new process at the same address that has forgotten, or until its time is over.
    """

    _reported: dict[str, dict[int, tuple[bool, float]]] = field(
        default_factory=dict
    )  # guilt, and until when, by address

    def apply(self, address: str, reports: Iterable[PoisonReport], now: float) -> bool:
        """Take it for all that the worker suspects; who was guilty stays so. False where that is nothing new."""
        known = self._reported.pop(address, {})
        said = {key: each for key, each in known.items() if each[0]}
        said |= {each.fingerprint: (each.is_confirmed, now + (seconds_of(each.ttl) or 0.0)) for each in reports}
        if said:
            self._reported[address] = said
        return {key: guilt for key, (guilt, _) in said.items()} != {key: guilt for key, (guilt, _) in known.items()}

    def is_reported(self, fingerprint: int) -> bool:
        return any(fingerprint in said for said in self._reported.values())

    def expire(self, now: float) -> bool:
        """Forget what is over; False where nothing is."""
        over = [
            (address, key)
            for address, said in self._reported.items()
            for key, (_, until) in said.items()
            if until <= now
        ]
        for address, key in over:
            del self._reported[address][key]
        self._reported = {address: said for address, said in self._reported.items() if said}
        return bool(over)

    def merged(self) -> tuple[PoisonReport, ...]:
        """Return everybody once; guilty where any worker says so."""
        found: dict[int, bool] = {}
        for said in self._reported.values():
            for key, (is_guilty, _) in said.items():
                found[key] = is_guilty or found.get(key, False)
        return tuple(PoisonReport(fingerprint=key, is_confirmed=is_guilty) for key, is_guilty in found.items())
