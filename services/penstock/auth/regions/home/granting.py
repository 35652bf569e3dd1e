"""Grants shares to other regions: the exchanges at the home region. A raise is stored before it is sent."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from penstock.auth.authorizer import Authorizer
from penstock.auth.regions import frames
from penstock.auth.regions.granted import GrantedShares, ShareChange
from penstock.auth.regions.share import LargestShare, ShareRow
from penstock.auth.store.store import OnPersisted, Store
from penstock.chassis.errors import FailedPrecondition
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1 import region_quota_pb2 as pb
from penstock.mesh.v1.region_quota_pb2 import FollowResponse

log = structlog.get_logger()


class RegionStream(Protocol):
    """A stream to a process of another region that has joined."""

    @property
    def region(self) -> str: ...

    def send(self, frame: FollowResponse) -> object: ...


class Exchange(NamedTuple):
    """The stream on which a region exchanges the shares of a partition."""

    stream: RegionStream
    epoch: int  # of the partition in the region


class ShareGrants:
    """The exchanges of all regions. A partition of a region has one, that of its latest owner there."""

    def __init__(
        self, granted: GrantedShares, authorizer: Authorizer, store: Store, clock: Callable[[], float]
    ) -> None:
        self.changes = 0  # of shares that were sent
        self._granted = granted
        self._authorizer = authorizer
        self._store = store
        self._clock = clock
        self._exchanges: dict[tuple[str, int], Exchange] = {}  # by region and partition
        self._latest_epochs: dict[tuple[str, int], int] = {}

    @property
    def excess_claims(self) -> int:
        return self._granted.excess_claims

    @property
    def largest(self) -> LargestShare:
        return self._granted.largest

    def on_begin(self, stream: RegionStream, begin: pb.SharesBegin) -> None:
        """Begin an exchange. Raises InvalidArgument, or FailedPrecondition / EPOCH_STALE after one of a later epoch."""
        rows = frames.rows_of(begin, stream.region)
        place = stream.region, begin.partition
        if begin.partition not in self._authorizer.served:
            return
        if begin.epoch < (latest := self._latest_epochs.get(place, 0)):
            text = f"partition {begin.partition} of region {stream.region} was begun with epoch {latest} before"
            raise FailedPrecondition(f"{text}; this one has {begin.epoch}", reason="EPOCH_STALE")
        self._latest_epochs[place] = begin.epoch
        if place in self._exchanges:
            self._granted.on_end(*place)
        self._exchanges[place] = Exchange(stream, begin.epoch)
        self._store_all(self._granted.on_begin(*place, rows))

    def on_demand(self, stream: RegionStream, message: pb.ShareDemand) -> None:
        """Raises InvalidArgument."""
        demand = frames.demand_of(message)
        if self._is_present(stream, demand.tenant_id) and self._authorizer.reservations.quota(demand.tenant_id):
            self._granted.on_demand(stream.region, demand, self._clock())

    def on_held(self, stream: RegionStream, message: pb.ShareHeld) -> None:
        """Raises InvalidArgument."""
        row = frames.row_of(message.share, stream.region)
        if self._is_present(stream, row.tenant_id):
            self._store_all(self._granted.on_held(stream.region, message.share.number, row))

    def on_stream_down(self, stream: RegionStream) -> None:
        for place, exchange in list(self._exchanges.items()):
            if exchange.stream is stream:
                self._end(place)

    def on_region_left(self, region: str) -> None:
        """The last stream of a region has ended. Its next one may be of another store, whose epochs begin anew.

        No former owner of a partition has a stream either, whose late frames the epochs are for.
        """
        for place in [each for each in self._latest_epochs if each[0] == region]:
            del self._latest_epochs[place]

    def on_partitions_changed(self) -> None:
        """End the exchanges of partitions that another process owns now."""
        for place in list(self._exchanges):
            if place[1] not in self._authorizer.served:
                self._end(place)

    def tick(self, now: float) -> None:
        """Move shares to where they are needed."""
        demands = self._authorizer.pop_demands(now)
        if not self._store.is_available:
            return
        in_use = partial(self._authorizer.share_in_use, now=now)
        for change in self._granted.decide(demands, in_use, now):
            self._apply_own(change.bound, now)
            if change.bound.share == change.former:  # a lowering counts once the region has confirmed it
                self._send(change)
            else:
                self._write(change.bound, partial(self._on_stored, change))

    def _end(self, place: tuple[str, int]) -> None:
        del self._exchanges[place]
        self._granted.on_end(*place)

    def _is_present(self, stream: RegionStream, tenant_id: str) -> bool:
        exchange = self._exchanges.get((stream.region, partition_of(tenant_id)))
        return exchange is not None and exchange.stream is stream

    def _store_all(self, rows: Iterable[ShareRow]) -> None:
        now = self._clock()
        for row in rows:
            self._apply_own(row, now)
            self._write(row, lambda _: None)  # what is stored until then is no less

    def _write(self, row: ShareRow, on_persisted: OnPersisted) -> None:
        """Store a share that is in force. One of a tenant that was deleted is not stored."""
        if put := self._authorizer.share_change(row):
            self._store.write(put, on_persisted)

    def _on_stored(self, change: ShareChange, error: Exception | None) -> None:
        if error:
            self._granted.on_unsent(change)
            self._apply_own(change.bound, self._clock())
        else:
            self._send(change)

    def _send(self, change: ShareChange) -> None:
        exchange = self._exchanges.get((change.row.region, partition_of(change.row.tenant_id)))
        if exchange:
            self.changes += 1
            exchange.stream.send(frames.share(change.number, change.row))

    def _apply_own(self, row: ShareRow, now: float) -> None:
        """Enforce from now on what is left for the home region."""
        own = self._granted.own(row.tenant_id, row.scope)
        self._authorizer.set_share(row.tenant_id, row.scope, own, now)
