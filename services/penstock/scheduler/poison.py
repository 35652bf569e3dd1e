"""Poison reports of the workers: requests that crashed an engine or may have. `now` is in s on any clock."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from penstock.chassis.durations import seconds_of
from penstock.mesh.limits.bounds import POISON_REPORTS
from penstock.mesh.v1.ticket_pb2 import PoisonReport

MAX_REPORTS_PER_FRAME = 1_024  # a worker keeps at most 256 confirmed requests, and suspects for its slots
MAX_REPORTS_PER_WORKER = 2_048  # the oldest confirmed requests of earlier processes are forgotten first
# Reports of all workers together. Beyond, the workers with the most reports lose their oldest ones, so that a worker
# with very many, or under very many addresses, does not displace those of workers that have few.
MAX_REPORTS = POISON_REPORTS
KEPT_REPORTS = MAX_REPORTS * 7 // 8  # left then, so that not every further report has to be limited


@dataclass(slots=True)
class PoisonReports:
    """Reported requests by worker address.

    A worker takes no tickets while it tests suspected requests, and it may be disconnected. Its reports hold until it
    sends others, possibly as a new process at the same address, or until they expire.
    """

    # By address and fingerprint: whether it is confirmed, and the s of expiration.
    _reported: dict[str, dict[int, tuple[bool, float]]] = field(default_factory=dict)

    _count: int = 0  # reports of all workers

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
        self._count += len(latest) - len(known)
        self._limit_total()
        return {key: each[0] for key, each in latest.items()} != {key: each[0] for key, each in known.items()}

    def _limit_total(self) -> None:
        """Limit the reports of each worker to a number with which the total leaves room for further ones."""
        if self._count <= MAX_REPORTS:
            return
        shares = range(MAX_REPORTS_PER_WORKER + 1)
        share = bisect_left(shares, x=True, key=lambda most: self._total(most) > KEPT_REPORTS) - 1
        for reports in self._reported.values():
            for key in list(islice(reports, max(0, len(reports) - max(1, share)))):
                del reports[key]
        while len(self._reported) > KEPT_REPORTS:
            del self._reported[next(iter(self._reported))]
        self._count = self._total(MAX_REPORTS_PER_WORKER)

    def _total(self, most: int) -> int:
        """Return the number of reports if each worker has at most `most`."""
        return sum(min(most, len(reports)) for reports in self._reported.values())

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
        self._count -= len(expired)
        self._reported = {address: reports for address, reports in self._reported.items() if reports}
        return bool(expired)

    def merged(self) -> tuple[PoisonReport, ...]:
        """Return each reported request once; it is confirmed if any worker reports it as confirmed."""
        merged: dict[int, bool] = {}
        for reports in self._reported.values():
            for key, (is_confirmed, _) in reports.items():
                merged[key] = is_confirmed or merged.get(key, False)
        return tuple(PoisonReport(fingerprint=key, is_confirmed=each) for key, each in merged.items())
