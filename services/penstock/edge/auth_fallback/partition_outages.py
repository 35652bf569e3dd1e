"""Outages of auth by partition: the state of each replica's stream, and of the partitions that no replica owns."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from penstock.edge.auth_fallback.outage import OutageDetector
from penstock.mesh.partitions import PARTITIONS

# Longest wait for a new owner: a dead replica is detected within 1.9 s, and its partitions are taken over within 2 s.
TAKEOVER_WAIT_S = 4.0  # s from the begin of the outage


class OutageStage(IntEnum):
    """How the edge decides requests of a partition."""

    REACHABLE = 0  # auth decides
    TAKEOVER_EXPECTED = 1  # grants admit; requests that they do not admit wait for the next owner
    UNREACHABLE = 2  # grants admit; other requests are rejected


@dataclass(slots=True, eq=False)
class PartitionGroup:
    """Partitions that have one outage in common: those of one stream, or those that lost their owner together."""

    address: str  # of the replica that owns the partitions or owned them last
    detector: OutageDetector
    is_connected: bool = True
    partitions: int = 0  # number of them
    stage: OutageStage = OutageStage.REACHABLE  # as of the last check


class PartitionOutages:
    """Assigns each partition to a group, whose detector measures its outage.

    The cost of a request or frame does not depend on the number of partitions; changes of streams and owners loop.
    """

    def __init__(self, *, outage_after: float) -> None:
        self._outage_after = outage_after  # s
        self._has_responded = False
        self._has_been_connected = False
        self._streams: dict[str, PartitionGroup] = {}
        self._last_lost = self._new_group("", is_connected=False)  # the last stream, while there is none
        self._last_lost.partitions = PARTITIONS
        self._groups = [self._last_lost] * PARTITIONS
        # Groups without a stream that have partitions, in order of their outages.
        self._unowned: dict[PartitionGroup, None] = {self._last_lost: None}
        # Start of the outage that a partition had under its former owner, and time of the change of the owner.
        self._carried: dict[int, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<PartitionOutages {list(self._streams)}, {len(self._unowned)} groups without an owner>"

    @property
    def groups(self) -> list[PartitionGroup]:
        lost = [] if self._streams or self._last_lost in self._unowned else [self._last_lost]
        return [*self._streams.values(), *self._unowned, *lost]

    # Questions.

    def group(self, partition: int) -> PartitionGroup:
        return self._groups[partition]

    def is_unreachable(self, partition: int, now: float) -> bool:
        return self._groups[partition].detector.is_unreachable(now)

    def is_store_unavailable(self, partition: int) -> bool:
        return self._groups[partition].detector.is_store_unavailable

    def is_responsive(self, address: str, now: float) -> bool:
        """Whether a replica is connected, responds and can write to its store."""
        group = self._streams.get(address)
        return group is not None and not group.detector.is_unreachable(now)

    def is_all_unreachable(self, now: float) -> bool:
        """Whether no replica is connected and responds."""
        if not self._streams:
            return self._last_lost.detector.is_unreachable(now)
        for group in self._streams.values():  # noqa: SIM110  # asked for each request; a generator costs more
            if not group.detector.is_unreachable(now):
                return False
        return True

    def is_any_unreachable(self, now: float) -> bool:
        """Whether the edge decides for at least one partition."""
        owners = (group for group in self.groups if group.partitions)
        return self.is_all_unreachable(now) or any(group.detector.is_unreachable(now) for group in owners)

    def is_takeover_expected(self, partition: int, now: float) -> bool:
        """Whether a request that grants do not admit waits for the next owner of its partition."""
        return self._is_takeover_expected(self._groups[partition], now)

    def outage_duration(self, partition: int, now: float) -> float:
        """Return the seconds since the partition's owner last responded as required. 0 without an outage."""
        since = self._groups[partition].detector.outage_since
        return max(0.0, now - min(since, self._carried_outage(partition, now)))

    @property
    def is_timing(self) -> bool:
        return any(group.detector.is_timing for group in self.groups)

    def next_change_at(self, now: float) -> float:
        """Return the time of the next change of a stage unless auth responds. Infinite if none is due."""
        waits = self._outage_after, TAKEOVER_WAIT_S
        due = [group.detector.silent_since + wait for group in self.groups for wait in waits]
        return min((at for at in due if at > now), default=math.inf)

    def check(self, now: float) -> list[PartitionGroup]:
        """Update the stages. Returns the groups whose stage has risen."""
        risen = []
        for group in self.groups:
            group.detector.check(now)
            former, group.stage = group.stage, self._stage(group, now)
            if group.stage > former:
                risen.append(group)
        return risen

    # Events of streams and owners.

    def on_connected(self, address: str, now: float) -> None:
        if not self._has_been_connected:
            self._has_been_connected = True
            self._last_lost.detector.on_disconnected(now)  # from now on, partitions without an owner count as lost
        group = self._streams[address] = self._new_group(address)
        group.detector.on_connected(now)

    def on_disconnected(self, address: str, now: float, *, on_purpose: bool = False) -> None:
        """A stream is lost. `on_purpose`, without another stream: the edge decides at once."""
        group = self._streams.pop(address)
        for partition in self._partitions_of(group):
            self._end_carried(partition, now)
        group.is_connected = False
        group.detector.on_disconnected(now, on_purpose=on_purpose and not self._streams)
        if group.partitions:
            self._unowned[group] = None
        if not self._streams:
            self._last_lost = group
            for each in self._unowned if on_purpose else ():
                each.detector.on_disconnected(now, on_purpose=True)

    def assign(self, partitions: Iterable[int], address: str, now: float) -> None:
        """A replica owns these partitions from now on."""
        group = self._streams[address]
        for partition in partitions:
            self._move(partition, group, now)

    def unassign(self, partitions: Iterable[int], now: float) -> None:
        """No replica owns these partitions. Those of a lost stream have been silent since it was lost or before."""
        groups: dict[PartitionGroup, PartitionGroup] = {}
        for partition in partitions:
            former = self._groups[partition]
            if not former.is_connected:
                continue
            if former not in groups:
                groups[former] = self._new_group(former.address, is_connected=False)
                groups[former].detector.on_disconnected(now)
                self._unowned[groups[former]] = None
            self._move(partition, groups[former], now)

    # Frames.

    def on_request_sent(self, address: str, request_id: str, now: float) -> None:
        if group := self._streams.get(address):
            group.detector.on_request_sent(request_id, now)

    def on_request_moved(self, address: str, request_id: str) -> None:
        """Another replica received the request of this one, which may never answer it."""
        if group := self._streams.get(address):
            group.detector.on_request_moved(request_id)

    def on_response(self, address: str, now: float, request_id: str = "") -> None:
        group = self._streams.get(address)
        if group is None:  # it has sent `end`
            return
        group.detector.on_response(now, request_id)
        if group.stage and not group.detector.is_unreachable(now):
            group.stage = OutageStage.REACHABLE
        if request_id and not self._has_responded:
            self._has_responded = True
            for each in (*self.groups, self._last_lost):
                each.detector.has_responded = True

    def on_store_state(self, address: str, now: float, *, is_unavailable: bool) -> None:
        if group := self._streams.get(address):
            group.detector.on_store_state(now, is_unavailable=is_unavailable)

    def _new_group(self, address: str, *, is_connected: bool = True) -> PartitionGroup:
        detector = OutageDetector(outage_after=self._outage_after, has_responded=self._has_responded)
        return PartitionGroup(address, detector, is_connected)

    def _partitions_of(self, group: PartitionGroup) -> list[int]:
        return [partition for partition, each in enumerate(self._groups) if each is group]

    def _move(self, partition: int, group: PartitionGroup, now: float) -> None:
        former = self._groups[partition]
        if former is group:
            return
        since = min(former.detector.outage_since, self._carried_outage(partition, now))
        if not math.isinf(since):
            self._carried[partition] = since, now
        self._groups[partition] = group
        group.partitions += 1
        former.partitions -= 1
        if not former.partitions:
            self._unowned.pop(former, None)

    def _carried_outage(self, partition: int, now: float) -> float:
        """Return the start of the outage that a change of the owner has not ended. Infinite if there is none."""
        self._end_carried(partition, now)
        return self._carried.get(partition, (math.inf, now))[0]

    def _end_carried(self, partition: int, now: float) -> None:
        group = self._groups[partition]
        _, moved_at = self._carried.get(partition, (math.inf, math.inf))
        if group.is_connected and group.detector.is_available_since(moved_at, now):
            self._carried.pop(partition, None)

    def _stage(self, group: PartitionGroup, now: float) -> OutageStage:
        if not group.detector.is_unreachable(now):
            return OutageStage.REACHABLE
        is_expected = self._is_takeover_expected(group, now)
        return OutageStage.TAKEOVER_EXPECTED if is_expected else OutageStage.UNREACHABLE

    def _is_takeover_expected(self, group: PartitionGroup, now: float) -> bool:
        if now >= group.detector.silent_since + TAKEOVER_WAIT_S:
            return False
        return any(not each.detector.is_unreachable(now) for each in self._streams.values() if each is not group)
