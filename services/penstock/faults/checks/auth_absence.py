"""Times at which a request may end with AUTH_LOST, because replicas of auth were absent. Pure.

While one replica is absent, the others take its partitions over, and requests wait for that. AUTH_LOST is allowed only
while all replicas are absent at once, or if absences follow each other for longer than an edge waits for a takeover.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from penstock.edge.auth_fallback.partition_outages import TAKEOVER_WAIT_S
from penstock.faults.checks.allowed_failures import RECOVERY_S, Interval, merge_overlapping, simultaneous

TAKEOVER_S = 2.5  # s from the loss of a replica until the others serve its partitions, as edges see it


class Absence(NamedTuple):
    """A fault of one replica of auth, or of a link to it."""

    since: float  # s
    until: float  # s
    is_link: bool = False  # the replica runs and keeps its partitions, while one edge does not reach it

    @property
    def interval(self) -> Interval:
        return Interval(self.since, self.until)

    @property
    def without_owner(self) -> Interval:
        """When edges may not reach an owner of the partitions, because of this fault alone."""
        until = self.until if self.is_link else min(self.until, self.since + TAKEOVER_S)
        return Interval(self.since, until + RECOVERY_S)


def auth_lost_intervals(absences: Collection[Sequence[Absence]]) -> list[Interval]:
    """Return when AUTH_LOST is allowed. `absences` has those of each replica."""
    all_absent = simultaneous([each.interval for each in of_replica] for of_replica in absences)
    without_owner = merge_overlapping(each.without_owner for of_replica in absences for each in of_replica)
    return merge_overlapping([*all_absent, *_beyond_wait(without_owner)])


def _beyond_wait(intervals: Sequence[Interval]) -> Iterator[Interval]:
    for each in intervals:
        if each.until - each.since > TAKEOVER_WAIT_S:
            yield Interval(each.since + TAKEOVER_WAIT_S, each.until + RECOVERY_S)
