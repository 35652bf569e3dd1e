"""When the next slots of a model fall free: those of the leases that run now, and of tickets that follow them.

While tickets wait, all N slots stay taken. Where R(t) of the present leases have ended, as many others run, each of
which ends after some time L in the mean: so slots fall free by F(t) = R(t) + 1/L * integral of R up to t - L/4, as next
to no answer is much shorter than the mean. That is N/L a second in the long run, whatever the lengths.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from penstock.queue.prediction.pool_stats import SlotRelease

MIN_HOLD_SHARE = 0.25  # of the mean time, before which a lease hardly ends
TAIL_HOLD_FACTORS = (
    0.5,
    1.0,
    2.0,
)  # mean times after the last present lease has ended; beyond, the rate is what it is for ever


class ReleaseCurve:
    """Times are in s from the report, steps without prefill alone."""

    __slots__ = ("_counts", "_rate", "_times")

    def __init__(self, releases: Sequence[SlotRelease], mean_hold: float, free_slots: int = 0) -> None:
        """`mean`: s for which a ticket placed from now on keeps its slot; 0: unknown, and all goes on as it does.

        `free` slots are taken at once, and fall free again.
        """
        last, ended = releases[-1] if releases else SlotRelease(0.0, 0)
        self._rate = (ended + free_slots) / mean_hold if mean_hold else ended / (last or 1.0)
        self._times, self._counts = [0.0, *[after for after, _ in releases]], [0.0, *[count for _, count in releases]]
        if mean_hold:
            self._times += [last + share * mean_hold for share in TAIL_HOLD_FACTORS]
            self._counts += [ended] * len(TAIL_HOLD_FACTORS)
            followers = _CurveIntegral(self._times, [count + free_slots for count in self._counts])
            self._counts = [
                count + followers(time - MIN_HOLD_SHARE * mean_hold) / mean_hold
                for time, count in zip(self._times, self._counts, strict=True)
            ]

    def time_of(self, count: float) -> float:
        """Return when so many slots have fallen free; a slot that is free already is none of them."""
        times, counts = self._times, self._counts
        if count <= 0:
            return 0.0
        place = bisect_left(counts, count)
        if place == len(counts):
            return times[-1] + ((count - counts[-1]) / self._rate if self._rate else 0.0)
        before, after = counts[place - 1], counts[place]
        return times[place - 1] + (times[place] - times[place - 1]) * (count - before) / (after - before)


class _CurveIntegral:
    """Integral of a curve from 0 to a time."""

    def __init__(self, times: Sequence[float], heights: Sequence[float]) -> None:
        self._times, self._heights = times, heights
        self._sums, total = [0.0], 0.0
        for (since, low), (until, high) in pairwise(zip(times, heights, strict=True)):
            total += (until - since) * (low + high) / 2
            self._sums.append(total)

    def __call__(self, time: float) -> float:
        if time <= 0:
            return 0.0
        place = bisect_right(self._times, time) - 1
        since, low = time - self._times[place], self._heights[place]
        if place + 1 == len(self._times):
            return self._sums[place] + since * low
        span = self._times[place + 1] - self._times[place]
        slope = (self._heights[place + 1] - low) / span
        return self._sums[place] + since * (low + slope * since / 2)
