"""Steps of which a worker tells nobody before the last is over: one event for all, where nobody comes amid them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.worker.scheduler_session.load_report import MAX_STEPS_BETWEEN_REPORTS, LoadReport, has_changed
from penstock.worker.scheduler_session.throughput import EWMA_KEPT_SHARE, EngineThroughput


@dataclass(slots=True)
class FastForward:
    """Steps that do nothing but decode who decodes already. Values are of all of them, whether they are over or not."""

    decode_seqs: int  # of each
    durations: Sequence[float]  # s
    ends_at: Sequence[float]  # s
    steps_ended: int = 0  # steps; the next is under way

    @property
    def is_in_last_step(self) -> bool:
        return self.steps_ended + 1 == len(self.ends_at)

    def newly_ended(self, now: float) -> int:
        """Return how many steps are over by now that were not; the last has an event of its own for that."""
        return bisect_right(self.ends_at, now, self.steps_ended, len(self.ends_at) - 1) - self.steps_ended

    def current_step(self) -> "FastForward":
        """Return a leap of the step that is under way alone."""
        under_way = slice(self.steps_ended, self.steps_ended + 1)
        return FastForward(self.decode_seqs, self.durations[under_way], self.ends_at[under_way])


class ForecastingThroughput(EngineThroughput):
    """A pace that foresees when steps that only decode come to news."""

    __slots__ = ()

    def steps_until_report(self, last: LoadReport) -> int:
        """Return how many steps it takes until their number alone is news."""
        return last.steps + MAX_STEPS_BETWEEN_REPORTS - self.steps

    def fast_forward(
        self, decode_seqs: int, durations: Sequence[float], last: LoadReport, starts_at: float, progress_due_at: float
    ) -> FastForward:
        """Return the steps up to the first that ends at `due` or later, or is news after `told`."""
        ends = list[float]()
        step_time, tokens = self.step_time or 0.0, self._tokens_per_step
        told_time, told_rate = last.step_time or 0.0, last.tokens_per_second
        for duration in durations:
            starts_at += duration
            ends.append(starts_at)
            step_time = EWMA_KEPT_SHARE * step_time + (1 - EWMA_KEPT_SHARE) * duration
            tokens = EWMA_KEPT_SHARE * tokens + (1 - EWMA_KEPT_SHARE) * decode_seqs
            if (
                starts_at >= progress_due_at
                or has_changed(step_time, told_time)
                or has_changed(tokens / step_time, told_rate)
            ):
                break
        return FastForward(decode_seqs, durations[: len(ends)], ends)
