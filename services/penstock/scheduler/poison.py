"""Poison reports of the workers: requests that crashed an engine or may have. `now` is in s on any clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from penstock.chassis.durations import seconds_of
from penstock.mesh.limits.bounds import POISON_REPORTS
from penstock.mesh.v1.ticket_pb2 import PoisonReport

MAX_REPORTS_PER_FRAME = 1_024  # a worker keeps at most 256 confirmed requests, and suspects for its slots
MAX_REPORTS_PER_WORKER = 2_048  # the oldest confirmed requests of earlier processes are forgotten first
# Reports of all workers together. Beyond, the worker with the most reports loses its oldest ones, so that a worker with
# very many, or under very many addresses, does not displace those of others that have few.
MAX_REPORTS = POISON_REPORTS


@dataclass(slots=True)
class PoisonReports:
    """Reported requests by worker address.

    A worker takes no tickets while it tests suspected requests, and it may be disconnected. Its reports hold until it
    sends others, possibly as a new process at the same address, or until they expire.
    """

    # By address and fingerprint: whether it is confirmed, and the s of expiration.
    _reported: dict[str, dict[int, tuple[bool, float]]] = field(default_factory=dict)

    def apply(self, address: str, reports: Iterable[PoisonReport], now: float) -> bool:
        """Replace the suspected requests of a worker; confirmed ones stay. Return whether anything has changed."""
        known = self._reported.pop(address, {})
        latest = {key: each for key, each in known.items() if each[0]}
        latest |= {
            each.fingerprint: (each.is_confirmed, now + (seconds_of(each.ttl) or 0.0))
            for each in islice(reports, MAX_REPORTS_PER_FRAME)
        }
        while len(latest) > MAX_REPORTS_PER_WORKER:
            del latest[next(iter(latest))]
        if latest:
            self._reported[address] = latest
        self._limit_total()
        return {key: each[0] for key, each in latest.items()} != {key: each[0] for key, each in known.items()}

    def _limit_total(self) -> None:
        excess = sum(map(len, self._reported.values())) - MAX_REPORTS
        while excess > 0:
            address, reports = max(self._reported.items(), key=lambda item: len(item[1]))
            # Down to the mean at once, as one by one would take long with very many addresses.
            spare = max(1, min(excess, len(reports) - MAX_REPORTS // len(self._reported)))
            for key in list(islice(reports, spare)):
                del reports[key]
            if not reports:
                del self._reported[address]
            excess -= spare

    def expire(self, now: float) -> bool:
        """Remove expired reports. Return whether there were any."""
        expired = [
            (address, key)
            for address, reports in self._reported.items()
            for key, (_, expires_at) in reports.items()
            if expires_at <= now
        ]
        for address, key in expired:
            del self._reported[address][key]
        self._reported = {address: reports for address, reports in self._reported.items() if reports}
        return bool(expired)

    def merged(self) -> tuple[PoisonReport, ...]:
        """Return each reported request once; it is confirmed if any worker reports it as confirmed."""
        merged: dict[int, bool] = {}
        for reports in self._reported.values():
            for key, (is_confirmed, _) in reports.items():
                merged[key] = is_confirmed or merged.get(key, False)
        return tuple(PoisonReport(fingerprint=key, is_confirmed=each) for key, each in merged.items())
