"""The plan of a clairvoyant: the least worker time with which known work is never above a share of the workers' time.

The clairvoyant knows every arrival. It starts a worker its load time before the worker is needed, and stops it as soon
as it is not, unless the pause is shorter than another load. Pure.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

MAX_UTILISATION = 0.75  # share of a worker's time, the same for which the mesh plans
SMOOTHING_S = 60  # s around a time over which work is averaged: a queue evens out less than a minute


class WorkItem(NamedTuple):
    """Work of one request."""

    at: float  # s
    seconds: float  # of one worker


class PlannedWorker(NamedTuple):
    """One worker of the plan, in s."""

    started_at: float  # it loads from here on, and serves after the load time
    stopped_at: float


def clairvoyant_plan(work: Iterable[WorkItem], load_time: float) -> list[PlannedWorker]:
    """Return the workers, by number and time. The first ones start before the first arrival, at negative times."""
    needed = needed_workers(work)
    planned = []
    for number in range(max(needed, default=0)):
        busy = _intervals([count > number for count in needed])
        planned += [PlannedWorker(begin - load_time, end) for begin, end in _merged(busy, load_time)]
    return planned


def worker_seconds(plan: Iterable[PlannedWorker]) -> float:
    return sum(each.stopped_at - each.started_at for each in plan)


def needed_workers(work: Iterable[WorkItem]) -> list[int]:
    """Return the workers that are needed in each second."""
    by_second: dict[int, float] = {}
    for item in work:
        by_second[int(item.at)] = by_second.get(int(item.at), 0.0) + item.seconds
    if not by_second:
        return []
    length, half = max(by_second) + 1, SMOOTHING_S // 2
    sums = [0.0, *accumulate(by_second.get(second, 0.0) for second in range(length))]
    needed = []
    for second in range(length):
        begin, end = max(0, second - half), min(length, second + half)
        needed.append(math.ceil((sums[end] - sums[begin]) / (end - begin) / MAX_UTILISATION))
    return needed


def _intervals(is_needed: Sequence[bool]) -> list[tuple[float, float]]:
    changes = [second for second, (before, after) in enumerate(pairwise((False, *is_needed, False))) if before != after]
    return [(float(begin), float(end)) for begin, end in zip(changes[::2], changes[1::2], strict=True)]


def _merged(intervals: Iterable[tuple[float, float]], load_time: float) -> list[tuple[float, float]]:
    """Join intervals whose pause is shorter than a load, during which it is cheaper to keep the worker."""
    merged: list[tuple[float, float]] = []
    for begin, end in intervals:
        if merged and begin - merged[-1][1] <= load_time:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((begin, end))
    return merged
