"""Progress of running leases, as reported to the scheduler. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.worker.runs.run import LeaseProgress

PROGRESS_INTERVAL_S = 0.25


class ProgressReport(NamedTuple):
    """Progress of the leases that have changed: in full until their first token was reported, then by number."""

    leases: list[tuple[int, LeaseProgress]]  # with their numbers
    lease_numbers: list[int]
    output_tokens: list[int]  # of each of `lease_numbers`


@dataclass(slots=True)
class ProgressReporter:
    """Numbers the leases of one stream. Numbers are never used again, so that a late report names no other lease."""

    _reported: dict[str, tuple[int, LeaseProgress]] = field(default_factory=dict)  # number and last report, by lease
    _last_number: int = 0
    _reported_at: float = -math.inf

    def on_stream_opened(self) -> None:
        """Report every lease in full again, because another scheduler does not know the numbers."""
        self._reported.clear()

    @property
    def due_at(self) -> float:
        return self._reported_at + PROGRESS_INTERVAL_S

    def take_due(self, running: Iterable[LeaseProgress], now: float) -> ProgressReport | None:
        """Return the changes of all running leases; None within `PROGRESS_INTERVAL_S` or without a change."""
        if now < self.due_at:
            return None
        self._reported_at, before, self._reported = now, self._reported, {}
        report = ProgressReport([], [], [])
        for progress in running:
            if progress.has_tokens:
                self._add(report, progress, before.get(progress.lease_id))
        return report if report.leases or report.lease_numbers else None

    def _add(self, report: ProgressReport, progress: LeaseProgress, last: tuple[int, LeaseProgress] | None) -> None:
        if last is None:
            self._last_number += 1
        number = last[0] if last else self._last_number
        self._reported[progress.lease_id] = number, progress
        if last and progress == last[1]:
            return
        if last and last[1].first_token_after_s is not None:
            report.lease_numbers.append(number)
            report.output_tokens.append(progress.output_tokens)
        else:
            report.leases.append((number, progress))
