"""Progress of running leases, as reported to the scheduler. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.worker.runs.run import LeaseProgress, Run

PROGRESS_INTERVAL_S = 0.25


@dataclass(slots=True)
class ProgressReporter:
    _reported_at: float = -math.inf

    def take_due(self, running: Iterable[Run], now: float) -> list[LeaseProgress]:
        """Return the progress of runs that changed since the last report, at most once per `PROGRESS_INTERVAL_S`."""
        if now < self._reported_at + PROGRESS_INTERVAL_S:
            return []
        self._reported_at = now
        found = [
            run
            for run in running
            if not run.is_orphan and run.progress.has_tokens and run.progress != run.last_reported
        ]
        for run in found:
            run.last_reported = run.progress
        return [run.progress for run in found]
