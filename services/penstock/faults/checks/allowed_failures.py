"""Allowed failures: the errors that a request may end with because of the faults of its world, and when. Pure.

A tier is down while each of its processes is dead or frozen, and for `RECOVERY_S` more; a worker is also down while
its engine is. A request may fail after its peers have waited for their configured time, with a suggested retry delay:

- QUEUE_LOST if all queues are down;
- NO_WORKER if all workers are down, or all schedulers, or both in turn, because no ticket can be placed;
- CONNECTION_LOST, raised by the client itself, if all edges are down.

MODEL_REPLACED is allowed after the last worker of a version was replaced.

Two errors are allowed from the start of a fault, because no request waits for its end: AUTH_LOST while auth or a link
to it is faulty or its disk is full, because an edge admits recently seen callers only, unless another replica of auth
takes over (`auth_absence.py`); STORE_UNAVAILABLE while the disk
is full, at an edge that auth has not answered yet. No fault
allows a wrong token, a wrong charge or a leak.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

PATIENCE_S = 10.0  # s that edges wait for queues, queues for workers and clients for edges
LIMIT_REASONS = ("QUOTA_EXCEEDED", "BUDGET_EXCEEDED")
RECOVERY_S = 1.0  # s until all peers are connected again to a recovered tier


class Interval(NamedTuple):
    since: float  # s
    until: float  # s

    def __contains__(self, moment: object) -> bool:
        return isinstance(moment, float) and self.since <= moment <= self.until


AllowedFailures = Mapping[str, Sequence[Interval]]
NONE_ALLOWED: AllowedFailures = MappingProxyType({})


def allowed_failures(
    downtimes_of: Callable[[str], Iterable[Sequence[Interval]]],
    disturbed: Mapping[str, Sequence[Interval]],
    replaced_at: Iterable[float] = (),
    auth_lost: Sequence[Interval] | None = None,
    *,
    has_limits: bool = False,
) -> AllowedFailures:
    """Return the intervals in which each reason is allowed.

    downtimes_of: returns when each process of a tier was down.
    disturbed:    when a process or a link of a tier was faulty, or the disk.
    replaced_at:  when the last worker of a version of the model was replaced.
    auth_lost:    when AUTH_LOST is allowed because of faults of auth's replicas; None: auth is one process.
    has_limits:   whether a tenant has a limit that its requests may exceed.
    """

    def tier_downtimes(tier: str) -> list[Interval]:
        return simultaneous(downtimes_of(tier))

    return {
        "QUEUE_LOST": _beyond_patience(tier_downtimes("queue")),
        "NO_WORKER": _beyond_patience(merge_overlapping([*tier_downtimes("worker"), *tier_downtimes("scheduler")])),
        "CONNECTION_LOST": _beyond_patience(tier_downtimes("edge")),
        "AUTH_LOST": [
            *(_with_recovery(disturbed.get("auth", ())) if auth_lost is None else auth_lost),
            *_with_recovery(disturbed.get("disk", ())),
        ],
        "MODEL_REPLACED": [Interval(each, math.inf) for each in replaced_at],
        "STORE_UNAVAILABLE": _with_recovery(disturbed.get("disk", ())),
        **{reason: [Interval(0.0, math.inf)] if has_limits else [] for reason in LIMIT_REASONS},
    }


def simultaneous(downtimes: Iterable[Sequence[Interval]]) -> list[Interval]:
    """Return when all were down, recovery included."""
    return reduce(_intersections, (merge_overlapping(_with_recovery(each)) for each in downtimes))


def merge_overlapping(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order, with overlapping and adjacent ones merged."""
    merged: list[Interval] = []
    for interval in sorted(intervals):
        if merged and interval.since <= merged[-1].until:
            merged[-1] = Interval(merged[-1].since, max(merged[-1].until, interval.until))
        else:
            merged.append(interval)
    return merged


def _with_recovery(intervals: Iterable[Interval]) -> list[Interval]:
    return [Interval(each.since, each.until + RECOVERY_S) for each in intervals]


def _beyond_patience(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the part of each interval after `PATIENCE_S`, if peers waited that long before the recovery."""
    return [
        Interval(each.since + PATIENCE_S, each.until)
        for each in intervals
        if each.since + PATIENCE_S < each.until - RECOVERY_S
    ]


def _intersections(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    pairs = ((one, other) for one in first for other in second)
    overlaps = (Interval(max(one.since, other.since), min(one.until, other.until)) for one, other in pairs)
    return sorted(each for each in overlaps if each.since < each.until)
