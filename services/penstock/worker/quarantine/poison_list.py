"""The poison list: fingerprints of requests that are confirmed to crash engines, and their reports. Knows no clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.worker.runs.run import Run

CONFIRMED_TTL_S = 600.0  # time in which no worker runs such a request; if sent again later, it costs another engine
MAX_CONFIRMED = 256


class PoisonReport(NamedTuple):
    """A report on all requests with the fingerprint, valid for `ttl_s` seconds."""

    fingerprint: int
    is_confirmed: bool
    ttl_s: float


@dataclass(slots=True)
class PoisonList:
    """Confirmed requests by fingerprint, as the same request may be sent again with another ticket and edge."""

    _confirmed_until: dict[int, float] = field(default_factory=dict)

    def confirm(self, run: Run, now: float) -> None:
        if run.fingerprint:
            self._confirmed_until.pop(run.fingerprint, None)
            self._confirmed_until[run.fingerprint] = now + CONFIRMED_TTL_S
        while len(self._confirmed_until) > MAX_CONFIRMED:
            del self._confirmed_until[next(iter(self._confirmed_until))]

    def is_confirmed(self, run: Run, now: float) -> bool:
        return self._confirmed_until.get(run.fingerprint, now) > now

    def reports(self, suspects: Iterable[Run], now: float, suspect_ttl_s: float) -> list[PoisonReport]:
        """Return reports of confirmed requests and of suspects, whose isolation takes `suspect_ttl_s` at most."""
        found = {
            run.fingerprint: PoisonReport(run.fingerprint, False, suspect_ttl_s) for run in suspects if run.fingerprint
        }
        for fingerprint, until in self._confirmed_until.items():
            if until > now:
                found[fingerprint] = PoisonReport(fingerprint, True, until - now)
        return list(found.values())
