"""Reasons for which a request may fail, and when: who is away for longer than peers wait is no bug of theirs. Pure.

A tier is away while each of its processes is dead or stands still, and for RECOVERY s more; a worker also while its
engine is. Only after its peers have waited for as long as they are set to are clients told of it, each with an error
that says when to come back:

- QUEUE_LOST where all queues are away;
- NO_WORKER where all workers are, or all schedulers, or both in turn: nobody can be placed;
- CONNECTION_LOST, by the client itself, where all edges are.

Two more hold from the first moment, as no request waits for them: AUTH_LOST while auth or a link to it is harmed, for
an edge lets in only whom it knows; STORE_UNAVAILABLE while the disk is full. Nothing excuses a token, a charge or a
leak.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

PATIENCE_S = 10.0  # s; of edges for queues, of queues for workers, of clients for edges
RECOVERY_S = 1.0  # s until everybody knows that a tier is back


class Interval(NamedTuple):
    since: float  # s
    until: float  # s

    def __contains__(self, moment: object) -> bool:
        return isinstance(moment, float) and self.since <= moment <= self.until


AllowedFailures = Mapping[str, Sequence[Interval]]
NONE_ALLOWED: AllowedFailures = MappingProxyType({})


def allowed_failures(
    downtimes_of: Callable[[str], Iterable[Sequence[Interval]]], disturbed: Mapping[str, Sequence[Interval]]
) -> AllowedFailures:
    """Return when each reason is one.

    absences: when each process of a tier was away.
    harmed:   when a process or link of a tier was harmed, or the disk.
    """

    def away(tier: str) -> list[Interval]:
        return simultaneous(downtimes_of(tier))

    return {
        "QUEUE_LOST": _beyond_patience(away("queue")),
        "NO_WORKER": _beyond_patience(merge_overlapping([*away("worker"), *away("scheduler")])),
        "CONNECTION_LOST": _beyond_patience(away("edge")),
        "AUTH_LOST": _with_recovery(disturbed.get("auth", ())),
        "STORE_UNAVAILABLE": _with_recovery(disturbed.get("disk", ())),
    }


def simultaneous(downtimes: Iterable[Sequence[Interval]]) -> list[Interval]:
    """Return when all were away, who is back counted as away until everybody knows."""
    return reduce(_intersections, (merge_overlapping(_with_recovery(each)) for each in downtimes))


def merge_overlapping(intervals: Iterable[Interval]) -> list[Interval]:
    """Return them in order, those that touch as one."""
    found: list[Interval] = []
    for span in sorted(intervals):
        if found and span.since <= found[-1].until:
            found[-1] = Interval(found[-1].since, max(found[-1].until, span.until))
        else:
            found.append(span)
    return found


def _with_recovery(intervals: Iterable[Interval]) -> list[Interval]:
    return [Interval(each.since, each.until + RECOVERY_S) for each in intervals]


def _beyond_patience(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the parts of them in which those who wait have done so for long enough."""
    return [
        Interval(each.since + PATIENCE_S, each.until)
        for each in intervals
        if each.since + PATIENCE_S < each.until - RECOVERY_S
    ]


def _intersections(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    pairs = ((one, other) for one in first for other in second)
    spans = (Interval(max(one.since, other.since), min(one.until, other.until)) for one, other in pairs)
    return sorted(each for each in spans if each.since < each.until)
