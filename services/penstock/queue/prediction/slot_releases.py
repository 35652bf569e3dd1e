"""Release curve: the times at which slots of a model are released, by present leases and by tickets that follow them.

While tickets wait, all N slots are in use. If R(t) of the present leases have ended, as many other leases run, each of
which ends after a mean hold time L. Slots are therefore released by F(t) = R(t) + 1/L * integral of R up to t - L/4,
because few answers are much shorter than the mean. In the long run this is N/L per second, for any lengths.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from penstock.queue.prediction.pool_stats import SlotRelease

MIN_HOLD_SHARE = 0.25  # share of the mean hold time before which few leases end
TAIL_HOLD_FACTORS = 0.5, 1.0, 2.0  # mean hold times after the last present lease; beyond them the rate is constant


class ReleaseCurve:
    """Released slots over time, in s from the report, for steps without prefill."""

    __slots__ = ("_counts", "_rate", "_times")

    def __init__(self, releases: Sequence[SlotRelease], mean_hold: float, free_slots: int = 0) -> None:
        """`mean_hold`: s for which a ticket that is placed from now on holds its slot; 0: unknown.

        If it is unknown, the mean rate of the present leases continues. `free_slots` are taken at once and released
        again.
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
        """Return the time at which `count` slots were released. Slots that are free at the report do not count."""
        times, counts = self._times, self._counts
        if count <= 0:
            return 0.0
        index = bisect_left(counts, count)
        if index == len(counts):
            return times[-1] + ((count - counts[-1]) / self._rate if self._rate else 0.0)
        before, after = counts[index - 1], counts[index]
        return times[index - 1] + (times[index] - times[index - 1]) * (count - before) / (after - before)


class _CurveIntegral:
    """Integral of a piecewise linear curve from 0 to a time."""

    def __init__(self, times: Sequence[float], heights: Sequence[float]) -> None:
        self._times, self._heights = times, heights
        self._sums, total = [0.0], 0.0
        for (since, low), (until, high) in pairwise(zip(times, heights, strict=True)):
            total += (until - since) * (low + high) / 2
            self._sums.append(total)

    def __call__(self, time: float) -> float:
        if time <= 0:
            return 0.0
        index = bisect_right(self._times, time) - 1
        since, low = time - self._times[index], self._heights[index]
        if index + 1 == len(self._times):
            return self._sums[index] + since * low
        span = self._times[index + 1] - self._times[index]
        slope = (self._heights[index + 1] - low) / span
        return self._sums[index] + since * (low + slope * since / 2)
