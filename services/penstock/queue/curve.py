"""When the next slots of a model fall free: those of the leases that run now, and of tickets that follow them.

While tickets wait, all N slots stay taken. Where R(t) of the present leases have ended, as many others run, each of
which ends after some time L in the mean: so slots fall free by F(t) = R(t) + 1/L * integral of R up to t - L/4, as next
to no answer is much shorter than the mean. That is N/L a second in the long run, whatever the lengths.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from penstock.queue.speed import Release

YOUNGEST = 0.25  # of the mean time, before which a lease hardly ends
TAIL = (0.5, 1.0, 2.0)  # mean times after the last present lease has ended; beyond, the rate is what it is for ever


class Curve:
    """Times are in s from the report, steps without prefill alone."""

    __slots__ = ("_counts", "_rate", "_times")

    def __init__(self, releases: Sequence[Release], mean: float, free: int = 0) -> None:
        """`mean`: s for which a ticket placed from now on keeps its slot; 0: unknown, and all goes on as it does.

        `free` slots are taken at once, and fall free again.
        """
        last = releases[-1] if releases else Release(0.0, 0)
        self._rate = (last.leases + free) / mean if mean else last.leases / (last.after or 1.0)
        points = [Release(0.0, 0), *releases]
        if not mean:
            self._times, self._counts = [each.after for each in points], [float(each.leases) for each in points]
            return
        points += [Release(last.after + share * mean, last.leases) for share in TAIL]
        self._times = [each.after for each in points]
        followers = _Integral([Release(each.after, each.leases + free) for each in points])
        self._counts = [each.leases + followers(each.after - YOUNGEST * mean) / mean for each in points]

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


class _Integral:
    """Integral of a curve from 0 to a time."""

    def __init__(self, points: Sequence[Release]) -> None:
        self._times = [each.after for each in points]
        self._heights = [each.leases for each in points]
        self._sums = [0.0]
        for one, two in pairwise(points):
            self._sums.append(self._sums[-1] + (two.after - one.after) * (one.leases + two.leases) / 2)

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
