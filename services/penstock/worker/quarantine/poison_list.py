"""The poison list: fingerprints of requests that are confirmed to crash engines, and their reports. Knows no clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.worker.runs.run import Run

CONFIRMED_TTL_S = 600.0  # time in which no worker runs such a request; if sent again later, it costs another engine
MAX_CONFIRMED = 256
MAX_CONFIRMED_PER_TENANT = 3  # further suspects of the tenant are not tested, as each costs an engine


class ConfirmedRequest(NamedTuple):
    expires_at: float  # s
    salt: bytes  # cache salt, which names the tenant; empty: unknown


class PoisonReport(NamedTuple):
    """A report on all requests with the fingerprint, valid for `ttl_s` seconds."""

    fingerprint: int
    is_confirmed: bool
    ttl_s: float


@dataclass(slots=True)
class PoisonList:
    """Confirmed requests by fingerprint, as the same request may be sent again with another ticket and edge."""

    _confirmed: dict[int, ConfirmedRequest] = field(default_factory=dict)

    def confirm(self, run: Run, now: float) -> None:
        if run.fingerprint:
            self._confirmed.pop(run.fingerprint, None)
            self._confirmed[run.fingerprint] = ConfirmedRequest(now + CONFIRMED_TTL_S, run.spec.cache_salt)
        while len(self._confirmed) > MAX_CONFIRMED:
            del self._confirmed[next(iter(self._confirmed))]

    def is_confirmed(self, run: Run, now: float) -> bool:
        confirmed = self._confirmed.get(run.fingerprint)
        return confirmed is not None and confirmed.expires_at > now

    def is_tenant_on_probation(self, run: Run, now: float) -> bool:
        """Whether so many requests of the run's tenant are confirmed that no further one is tested here."""
        salt = run.spec.cache_salt
        return (
            bool(salt)
            and sum(each.salt == salt and each.expires_at > now for each in self._confirmed.values())
            >= MAX_CONFIRMED_PER_TENANT
        )

    def reports(self, suspects: Iterable[Run], now: float, suspect_ttl_s: float) -> list[PoisonReport]:
        """Return reports of confirmed requests and of suspects, whose isolation takes `suspect_ttl_s` at most."""
        found = {
            run.fingerprint: PoisonReport(run.fingerprint, False, suspect_ttl_s) for run in suspects if run.fingerprint
        }
        for fingerprint, each in self._confirmed.items():
            if each.expires_at > now:
                found[fingerprint] = PoisonReport(fingerprint, True, each.expires_at - now)
        return list(found.values())
