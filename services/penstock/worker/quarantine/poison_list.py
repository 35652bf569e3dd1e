"""Whom this worker blames for its crashed engines, as others get to hear of it. Knows no clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.worker.runs.run import Run

CONFIRMED_TTL_S = 600.0  # s that nobody runs such a request; who sends it again then costs another engine
MAX_CONFIRMED = 256


class PoisonReport(NamedTuple):
    """What holds of all requests of that fingerprint, for `lasts` seconds."""

    fingerprint: int
    is_confirmed: bool
    ttl_s: float


@dataclass(slots=True)
class PoisonList:
    """Requests by fingerprint, as the same one may come again under another ticket and by another edge."""

    _confirmed_until: dict[int, float] = field(default_factory=dict)  # until when

    def confirm(self, run: Run, now: float) -> None:
        if run.fingerprint:
            self._confirmed_until.pop(run.fingerprint, None)
            self._confirmed_until[run.fingerprint] = now + CONFIRMED_TTL_S
        while len(self._confirmed_until) > MAX_CONFIRMED:
            del self._confirmed_until[next(iter(self._confirmed_until))]

    def is_confirmed(self, run: Run, now: float) -> bool:
        return self._confirmed_until.get(run.fingerprint, now) > now

    def reports(self, suspects: Iterable[Run], now: float, suspect_ttl_s: float) -> list[PoisonReport]:
        """Return them with those that are being tried, whose trials take `hold_for` seconds at most."""
        found = {
            run.fingerprint: PoisonReport(run.fingerprint, False, suspect_ttl_s) for run in suspects if run.fingerprint
        }
        for fingerprint, until in self._confirmed_until.items():
            if until > now:
                found[fingerprint] = PoisonReport(fingerprint, True, until - now)
        return list(found.values())
