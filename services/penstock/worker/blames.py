"""Whom this worker blames for its crashed engines, as others get to hear of it. Knows no clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.worker.run import Run

GUILTY_FOR = 600.0  # s that nobody runs such a request; who sends it again then costs another engine
MAX_GUILTY = 256


class Blame(NamedTuple):
    """What holds of all requests of that fingerprint, for `lasts` seconds."""

    fingerprint: int
    is_guilty: bool
    lasts: float


@dataclass(slots=True)
class Blames:
    """Requests by fingerprint, as the same one may come again under another ticket and by another edge."""

    _guilty: dict[int, float] = field(default_factory=dict)  # until when

    def convict(self, run: Run, now: float) -> None:
        if run.fingerprint:
            self._guilty.pop(run.fingerprint, None)
            self._guilty[run.fingerprint] = now + GUILTY_FOR
        while len(self._guilty) > MAX_GUILTY:
            del self._guilty[next(iter(self._guilty))]

    def is_guilty(self, run: Run, now: float) -> bool:
        return self._guilty.get(run.fingerprint, now) > now

    def all(self, suspects: Iterable[Run], now: float, hold_for: float) -> list[Blame]:
        """Return them with those that are being tried, whose trials take `hold_for` seconds at most."""
        found = {run.fingerprint: Blame(run.fingerprint, False, hold_for) for run in suspects if run.fingerprint}
        for fingerprint, until in self._guilty.items():
            if until > now:
                found[fingerprint] = Blame(fingerprint, True, until - now)
        return list(found.values())
