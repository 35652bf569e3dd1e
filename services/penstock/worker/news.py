"""What a scheduler is told of runs while they run. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.worker.run import Run, Served

PROGRESS_EVERY = 0.25  # s


@dataclass(slots=True)
class News:
    _told_at: float = -math.inf  # s

    def due(self, running: Iterable[Run], now: float) -> list[Served]:
        """Return what runs were served so far, those of whom that is news, but not too often."""
        if now < self._told_at + PROGRESS_EVERY:
            return []
        self._told_at = now
        found = [run for run in running if not run.is_ghost and run.served.is_any and run.served != run.told]
        for run in found:
            run.told = run.served
        return [run.served for run in found]
