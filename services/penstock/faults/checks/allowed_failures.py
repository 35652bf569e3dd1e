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

PATIENCE = 10.0  # s; of edges for queues, of queues for workers, of clients for edges
RECOVERY = 1.0  # s until everybody knows that a tier is back


class Span(NamedTuple):
    since: float  # s
    until: float  # s

    def __contains__(self, moment: object) -> bool:
        return isinstance(moment, float) and self.since <= moment <= self.until


Excused = Mapping[str, Sequence[Span]]
NOBODY: Excused = MappingProxyType({})


def excuses(absences: Callable[[str], Iterable[Sequence[Span]]], harmed: Mapping[str, Sequence[Span]]) -> Excused:
    """Return when each reason is one.

    absences: when each process of a tier was away.
    harmed:   when a process or link of a tier was harmed, or the disk.
    """

    def away(tier: str) -> list[Span]:
        return common(absences(tier))

    return {
        "QUEUE_LOST": _long(away("queue")),
        "NO_WORKER": _long(merged([*away("worker"), *away("scheduler")])),
        "CONNECTION_LOST": _long(away("edge")),
        "AUTH_LOST": _recovering(harmed.get("auth", ())),
        "STORE_UNAVAILABLE": _recovering(harmed.get("disk", ())),
    }


def common(absences: Iterable[Sequence[Span]]) -> list[Span]:
    """Return when all were away, who is back counted as away until everybody knows."""
    return reduce(_overlaps, (merged(_recovering(each)) for each in absences))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return them in order, those that touch as one."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.since <= found[-1].until:
            found[-1] = Span(found[-1].since, max(found[-1].until, span.until))
        else:
            found.append(span)
    return found


def _recovering(spans: Iterable[Span]) -> list[Span]:
    return [Span(each.since, each.until + RECOVERY) for each in spans]


def _long(spans: Iterable[Span]) -> list[Span]:
    """Return the parts of them in which those who wait have done so for long enough."""
    return [Span(each.since + PATIENCE, each.until) for each in spans if each.since + PATIENCE < each.until - RECOVERY]


def _overlaps(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    pairs = ((one, other) for one in some for other in others)
    spans = (Span(max(one.since, other.since), min(one.until, other.until)) for one, other in pairs)
    return sorted(each for each in spans if each.since < each.until)
