"""Poison requests of a shard: requests that crashed an engine or may have, as schedulers report them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.chassis.clocks import StallFreeClock
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue.errors import PoisonConfirmed, PoisonSuspected
from penstock.queue.tenant_probation import TenantProbation
from penstock.queue.ticket import QueuedTicket

LOST_REPORT_TTL_S = 10.0  # s for which the reports of a lost scheduler hold; its workers attach elsewhere by then
REPORT_DELAY_S = 1.0  # s after a scheduler was lost or has connected, until its workers have sent their reports


@dataclass(slots=True)
class PoisonRequests:
    """Reported fingerprints by scheduler, each suspected or confirmed.

    While a scheduler is missing, its workers cannot report the requests that they suspect. A ticket whose earlier run
    was lost may be such a request, so it is blocked until the reports of all workers have arrived.
    Times exclude stalls of this process, during which it receives no report.
    """

    clock: StallFreeClock = field(default_factory=StallFreeClock)
    probation: TenantProbation = field(default_factory=TenantProbation)
    _reported: dict[str, dict[int, bool]] = field(default_factory=dict)  # confirmed, by scheduler and fingerprint
    _lost_reports: dict[int, tuple[bool, float]] = field(default_factory=dict)  # confirmed, and s of expiration
    _lost_reports_until: float = 0.0  # s; time from which all of them have expired
    _incomplete_until: float = 0.0  # s; time from which the reports of all workers are known

    def on_scheduler_connected(self, scheduler: str, now: float) -> None:
        self._reported[scheduler] = {}
        self._incomplete_until = self.clock.at(now) + REPORT_DELAY_S

    def on_scheduler_disconnected(self, scheduler: str, now: float) -> None:
        ran = self.clock.at(now)
        self._lost_reports = {key: each for key, each in self._lost_reports.items() if each[1] > ran}
        self._lost_reports |= {
            key: (is_confirmed, ran + LOST_REPORT_TTL_S) for key, is_confirmed in self._reported.pop(scheduler).items()
        }
        if self._lost_reports:
            self._lost_reports_until = ran + LOST_REPORT_TTL_S
        self._incomplete_until = ran + REPORT_DELAY_S

    def is_timing(self, now: float) -> bool:
        """Whether a timeout runs, so that the clock must be read often."""
        return self.clock.at(now) < max(self._lost_reports_until, self._incomplete_until)

    def apply(self, scheduler: str, reports: Iterable[PoisonReport]) -> dict[int, bool]:
        """Replace the reports of a scheduler. Return the changes: by fingerprint, whether it is confirmed."""
        known = self._merged_reports
        self._reported[scheduler] = {report.fingerprint: report.is_confirmed for report in reports}
        return {
            key: is_confirmed
            for key, is_confirmed in self._merged_reports.items()
            if known.get(key) is not is_confirmed
        }

    def rejection(self, fingerprint: int, now: float) -> PenstockError | None:
        """Return the error of a reported request; None if it is not reported, or has no fingerprint."""
        if not fingerprint:
            return None
        verdicts = {reports.get(fingerprint) for reports in self._reported.values()}
        is_confirmed, until = self._lost_reports.get(fingerprint, (False, -math.inf))
        if until > self.clock.at(now):
            verdicts.add(is_confirmed)
        return PoisonConfirmed() if True in verdicts else PoisonSuspected() if False in verdicts else None

    def is_blocked(self, ticket: QueuedTicket, now: float) -> bool:
        """Whether an admitted ticket must not be offered now."""
        is_incomplete = self.clock.at(now) < self._incomplete_until
        return (is_incomplete and ticket.is_possible_poison) or self.rejection(ticket.fingerprint, now) is not None

    @property
    def _merged_reports(self) -> dict[int, bool]:
        """Reports of all schedulers. A request is confirmed if any scheduler reports it as confirmed."""
        merged: dict[int, bool] = {}
        for reports in self._reported.values():
            for key, is_confirmed in reports.items():
                merged[key] = is_confirmed or merged.get(key, False)
        return merged
