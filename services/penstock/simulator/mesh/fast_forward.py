"""Fast forward: steps that only decode and cause no report, simulated as one event."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.worker.scheduler_session.load_report import MAX_STEPS_BETWEEN_REPORTS, LoadReport, has_changed
from penstock.worker.scheduler_session.throughput import EWMA_KEPT_SHARE, EngineThroughput


@dataclass(slots=True)
class FastForward:
    """Consecutive steps that only decode the same sequences. The fields cover all of the steps."""

    decode_seqs: int  # of each step
    durations: Sequence[float]  # s
    ends_at: Sequence[float]  # s
    steps_ended: int = 0  # the next one is the current step

    @property
    def is_in_last_step(self) -> bool:
        return self.steps_ended + 1 == len(self.ends_at)

    def newly_ended(self, now: float) -> int:
        """Return how many more steps have ended by now, except the last one, which has an event of its own."""
        return bisect_right(self.ends_at, now, self.steps_ended, len(self.ends_at) - 1) - self.steps_ended

    def current_step(self) -> "FastForward":
        """Return a fast forward of the current step alone."""
        current = slice(self.steps_ended, self.steps_ended + 1)
        return FastForward(self.decode_seqs, self.durations[current], self.ends_at[current])


class ForecastingThroughput(EngineThroughput):
    """Engine throughput that predicts after how many decode steps a report is due."""

    __slots__ = ()

    def steps_until_report(self, last: LoadReport) -> int:
        """Return the steps until a report is due because of their number alone."""
        return last.steps + MAX_STEPS_BETWEEN_REPORTS - self.steps

    def fast_forward(
        self, decode_seqs: int, durations: Sequence[float], last: LoadReport, starts_at: float, progress_due_at: float
    ) -> FastForward:
        """Return the steps up to the first one that ends after `progress_due_at` or changes the report `last`."""
        ends = list[float]()
        step_time, tokens = self.step_time or 0.0, self._tokens_per_step
        reported_time, reported_rate = last.step_time or 0.0, last.tokens_per_second
        for duration in durations:
            starts_at += duration
            ends.append(starts_at)
            step_time = EWMA_KEPT_SHARE * step_time + (1 - EWMA_KEPT_SHARE) * duration
            tokens = EWMA_KEPT_SHARE * tokens + (1 - EWMA_KEPT_SHARE) * decode_seqs
            if (
                starts_at >= progress_due_at
                or has_changed(step_time, reported_time)
                or has_changed(tokens / step_time, reported_rate)
            ):
                break
        return FastForward(decode_seqs, durations[: len(ends)], ends)
