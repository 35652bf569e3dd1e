"""Progress of running leases, as reported to the scheduler. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.worker.runs.run import LeaseProgress

PROGRESS_INTERVAL_S = 0.25
# The output of running leases is reported less often by workers with many: each lease costs scheduler and shard about
# 1 us per report, and the charge of a tenant is as exact as with few leases that are reported more often.
MAX_OUTPUTS_PER_S = 256  # by one worker
MAX_OUTPUT_INTERVAL_S = 1.0


def output_interval_s(leases: int) -> float:
    return min(MAX_OUTPUT_INTERVAL_S, max(PROGRESS_INTERVAL_S, leases / MAX_OUTPUTS_PER_S))


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
    _output_reported_at: float = -math.inf

    def on_stream_opened(self) -> None:
        """Report every lease in full again, because another scheduler does not know the numbers."""
        self._reported.clear()

    @property
    def due_at(self) -> float:
        return self._reported_at + PROGRESS_INTERVAL_S

    def take_due(self, running: Iterable[LeaseProgress], now: float) -> ProgressReport | None:
        """Return the changes of all running leases; None within `PROGRESS_INTERVAL_S` or without a change.

        Output that is reported by number is left out until `output_interval_s` has passed.
        """
        if now < self.due_at:
            return None
        self._reported_at, before, self._reported = now, self._reported, {}
        has_output = now >= self._output_reported_at + output_interval_s(len(before))
        if has_output:
            self._output_reported_at = now
        report = ProgressReport([], [], [])
        for progress in running:
            if progress.has_tokens:
                self._add(report, progress, before.get(progress.lease_id), has_output=has_output)
        return report if report.leases or report.lease_numbers else None

    def _add(
        self,
        report: ProgressReport,
        progress: LeaseProgress,
        last: tuple[int, LeaseProgress] | None,
        *,
        has_output: bool,
    ) -> None:
        if last and last[1].first_token_after_s is not None:
            if has_output and progress != last[1]:
                report.lease_numbers.append(last[0])
                report.output_tokens.append(progress.output_tokens)
            self._reported[progress.lease_id] = (last[0], progress) if has_output else last
            return
        if last is None:
            self._last_number += 1
        number = last[0] if last else self._last_number
        self._reported[progress.lease_id] = number, progress
        if last is None or progress != last[1]:
            report.leases.append((number, progress))
