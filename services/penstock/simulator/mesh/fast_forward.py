"""Steps of which a worker tells nobody before the last is over: one event for all, where nobody comes amid them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.worker.load import MAX_STEPS_BETWEEN_REPORTS, LoadReport, has_changed
from penstock.worker.pace import EWMA_KEPT_SHARE, EngineThroughput


@dataclass(slots=True)
class Leap:
    """Steps that do nothing but decode who decodes already. Values are of all of them, whether they are over or not."""

    decodes: int  # of each
    durations: Sequence[float]  # s
    ends: Sequence[float]  # s
    over: int = 0  # steps; the next is under way

    @property
    def is_last(self) -> bool:
        return self.over + 1 == len(self.ends)

    def passed(self, now: float) -> int:
        """Return how many steps are over by now that were not; the last has an event of its own for that."""
        return bisect_right(self.ends, now, self.over, len(self.ends) - 1) - self.over

    def under_way(self) -> "Leap":
        """Return a leap of the step that is under way alone."""
        under_way = slice(self.over, self.over + 1)
        return Leap(self.decodes, self.durations[under_way], self.ends[under_way])


class SteadyPace(EngineThroughput):
    """A pace that foresees when steps that only decode come to news."""

    __slots__ = ()

    def unheard(self, told: LoadReport) -> int:
        """Return how many steps it takes until their number alone is news."""
        return told.steps + MAX_STEPS_BETWEEN_REPORTS - self.steps

    def leap(self, decodes: int, durations: Sequence[float], told: LoadReport, began: float, due: float) -> Leap:
        """Return the steps up to the first that ends at `due` or later, or is news after `told`."""
        ends = list[float]()
        step_time, tokens = self.step_time or 0.0, self._tokens_per_step
        told_time, told_rate = told.step_time or 0.0, told.tokens_per_second
        for duration in durations:
            began += duration
            ends.append(began)
            step_time = EWMA_KEPT_SHARE * step_time + (1 - EWMA_KEPT_SHARE) * duration
            tokens = EWMA_KEPT_SHARE * tokens + (1 - EWMA_KEPT_SHARE) * decodes
            if began >= due or has_changed(step_time, told_time) or has_changed(tokens / step_time, told_rate):
                break
        return Leap(decodes, durations[: len(ends)], ends)
