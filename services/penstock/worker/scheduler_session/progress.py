"""What a scheduler is told of runs while they run. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.worker.runs.run import LeaseProgress, Run

PROGRESS_INTERVAL_S = 0.25  # s


@dataclass(slots=True)
class ProgressReporter:
    _reported_at: float = -math.inf  # s

    def take_due(self, running: Iterable[Run], now: float) -> list[LeaseProgress]:
        """Return what runs were served so far, those of whom that is news, but not too often."""
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
