"""Exchanges of shares in a spending region: on which stream each own partition talks to the home region."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from penstock.auth.authorizer import Authorizer
from penstock.auth.regions import frames
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.share import FLOOR, Share, ShareRow
from penstock.auth.regions.spending.home_stream import HomeStream
from penstock.auth.store.store import PartitionsLost, Store
from penstock.mesh.partitions import partition_of
from penstock.mesh.v1 import region_quota_pb2 as pb

log = structlog.get_logger()


class Begun(NamedTuple):
    """With which epochs the exchange of a partition was begun on a stream."""

    home_epoch: int
    own_epoch: int


class Unwritten(NamedTuple):
    """A share that is in force and could not be stored."""

    stream: HomeStream
    number: int
    row: ShareRow
    own_epoch: int  # of its partition, when the share came into force


class ShareExchanges:
    """Each own partition talks on one stream to the process in the home region that owns it there."""

    def __init__(
        self, region: str, held: HeldShares, authorizer: Authorizer, store: Store, clock: Callable[[], float]
    ) -> None:
        self.changes = 0  # of shares that were applied
        self._region = region
        self._held = held
        self._authorizer = authorizer
        self._store = store
        self._clock = clock
        self._streams: dict[HomeStream, dict[int, Begun]] = {}  # begun exchanges by partition
        self._present: dict[int, HomeStream] = {}  # by own partition
        self._unwritten: dict[tuple[str, str], Unwritten] = {}

    @property
    def is_covered(self) -> bool:
        """Whether all own partitions talk to the home region."""
        return len(self._present) == len(self._authorizer.served)

    @property
    def shares(self) -> int:
        """Scopes of own partitions of which the home region has granted a share."""
        return sum(self._held.count(each) for each in self._authorizer.served.epochs)

    def partitions_of(self, stream: HomeStream) -> int:
        return sum(each is stream for each in self._present.values())

    def add(self, stream: HomeStream) -> None:
        self._streams[stream] = {}

    def remove(self, stream: HomeStream) -> None:
        self._streams.pop(stream, None)
        self.update()

    def update(self) -> None:
        """Begin the exchange of each own partition whose owner in the home region is known."""
        own = self._authorizer.served.epochs
        present, self._present = self._present, {}
        for partition, epoch in own.items():
            stream = self._stream_of(partition)
            if stream is None:
                continue
            begun, now_begun = self._streams[stream].get(partition), Begun(stream.epochs[partition], epoch)
            if begun is None or (begun.home_epoch < now_begun.home_epoch and begun.own_epoch == epoch):
                self._begin(stream, partition, now_begun)
            elif begun != now_begun or present.get(partition) is not stream:
                # A share that was sent in the former exchange may still be on its way.
                stream.leave("a partition has moved")
                continue
            self._present[partition] = stream

    def _stream_of(self, partition: int) -> HomeStream | None:
        """Return the stream to the owner of the partition in the home region; to the latest one if two claim it."""
        found = [each for each in self._streams if each.is_up and partition in each.epochs]
        return max(found, key=lambda each: each.epochs[partition], default=None)

    def _begin(self, stream: HomeStream, partition: int, begun: Begun) -> None:
        self._streams[stream][partition] = begun
        stream.send(frames.begin(partition, begun.own_epoch, self._held.rows_of(partition)))

    def on_rules(self, rules: pb.ShareRules) -> None:
        """Raises InvalidArgument."""
        self._held.largest.thousandths = frames.largest_of(rules)

    def on_share(self, stream: HomeStream, share: pb.Share) -> None:
        """Apply a share, store it, and confirm it. One of a partition that talks on another stream has no effect."""
        if self._present.get(partition_of(share.tenant_id)) is not stream:
            return
        row = ShareRow(share.tenant_id, share.scope, self._region, share.rates, share.budgets)
        if self._authorizer.reservations.quota(share.tenant_id) is None:
            stream.send(frames.held(share.number, row._replace(rates=FLOOR.rates, budgets=FLOOR.budgets)))
            return
        now = self._clock()
        held = self._held.on_share(row, self._authorizer.share_in_use(row.tenant_id, row.scope, now))
        self._authorizer.set_share(row.tenant_id, row.scope, Share(held.rates, held.budgets), now)
        self.changes += 1
        epoch = self._authorizer.served.epochs[partition_of(row.tenant_id)]
        self._write(Unwritten(stream, share.number, held, epoch))

    def _write(self, share: Unwritten) -> None:
        row = share.row
        self._unwritten.pop((row.tenant_id, row.scope), None)
        if put := self._authorizer.share_change(row):
            self._store.write(put, partial(self._on_written, share))

    def _on_written(self, share: Unwritten, error: Exception | None) -> None:
        row = share.row
        if error is None:
            self._held.on_stored(row)
            if self._present.get(partition_of(row.tenant_id)) is share.stream:
                share.stream.send(frames.held(share.number, row))
        elif not isinstance(error, PartitionsLost):
            self._unwritten[row.tenant_id, row.scope] = share

    def _write_again(self, share: Unwritten) -> None:
        """Write a share, unless its partition was lost meanwhile: the region has told its home another share since."""
        row = share.row
        if self._authorizer.served.epochs.get(partition_of(row.tenant_id)) == share.own_epoch:
            self._write(share)
        else:
            del self._unwritten[row.tenant_id, row.scope]

    def tick(self, now: float) -> None:
        """Write what could not be written, and report the demand since the last call."""
        for share in list(self._unwritten.values()):
            self._write_again(share)
        for demand in self._authorizer.pop_demands(now):
            if stream := self._present.get(partition_of(demand.tenant_id)):
                stream.send(frames.demand(demand))
