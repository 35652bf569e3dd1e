"""Whom nobody is to run, as schedulers say it of requests that crashed an engine, or may have."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.chassis.clocks import StallFreeClock
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue.errors import PoisonConfirmed, PoisonSuspected
from penstock.queue.ticket import QueuedTicket

LOST_REPORT_TTL_S = 10.0  # s that what a lost scheduler said holds: it may be back by then, or its workers elsewhere
REPORT_DELAY_S = 1.0  # s after which the workers of a scheduler that was lost, or is back, have said whom they suspect


@dataclass(slots=True)
class PoisonRequests:
    """By scheduler and fingerprint whether it is beyond doubt.

    While a scheduler is missing, some worker may have nobody to tell whom it suspects. A run that was lost with its
    worker, or with its edge, may be the suspect: it waits until such a worker was heard, and goes on elsewhere then.
    Time is the shard's own: while it stood still it heard nobody.
    """

    clock: StallFreeClock = field(default_factory=StallFreeClock)
    _reported: dict[str, dict[int, bool]] = field(default_factory=dict)
    _lost_reports: dict[int, tuple[bool, float]] = field(
        default_factory=dict
    )  # what lost schedulers had said, and until when
    _incomplete_until: float = 0.0  # s; when all workers are heard again

    def on_scheduler_connected(self, scheduler: str, now: float) -> None:
        self._reported[scheduler] = {}
        self._incomplete_until = self.clock.at(now) + REPORT_DELAY_S

    def on_scheduler_disconnected(self, scheduler: str, now: float) -> None:
        ran = self.clock.at(now)
        self._lost_reports = {key: each for key, each in self._lost_reports.items() if each[1] > ran}
        self._lost_reports |= {
            key: (is_guilty, ran + LOST_REPORT_TTL_S) for key, is_guilty in self._reported.pop(scheduler).items()
        }
        self._incomplete_until = ran + REPORT_DELAY_S

    def apply(self, scheduler: str, reports: Iterable[PoisonReport]) -> dict[int, bool]:
        """Take it for all that a scheduler says; return what is news of whom: of suspects False, of the guilty True."""
        known = self._merged_reports
        self._reported[scheduler] = {blame.fingerprint: blame.is_confirmed for blame in reports}
        return {key: is_guilty for key, is_guilty in self._merged_reports.items() if known.get(key) is not is_guilty}

    def rejection(self, fingerprint: int, now: float) -> PenstockError | None:
        """Return why nobody is to run such a request."""
        found = {said.get(fingerprint) for said in self._reported.values()}
        is_guilty, until = self._lost_reports.get(fingerprint, (False, -math.inf))
        if until > self.clock.at(now):
            found.add(is_guilty)
        return PoisonConfirmed() if True in found else PoisonSuspected() if False in found else None

    def is_blocked(self, ticket: QueuedTicket, now: float) -> bool:
        """Tell whether a ticket that was let in is not to be run now."""
        is_deaf = self.clock.at(now) < self._incomplete_until
        return (is_deaf and ticket.is_possible_poison) or self.rejection(ticket.fingerprint, now) is not None

    @property
    def _merged_reports(self) -> dict[int, bool]:
        """Who is guilty by anybody's word is."""
        found: dict[int, bool] = {}
        for said in self._reported.values():
            for key, is_guilty in said.items():
                found[key] = is_guilty or found.get(key, False)
        return found
