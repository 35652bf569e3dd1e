"""The store of one auth process on a database that it shares: commits, leases, and partitions that move."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from penstock.auth.partitions.keeper import PartitionKeeper, Presence, View
from penstock.auth.store.store import (
    Barrier,
    HandedOver,
    PartitionsLost,
    PendingChange,
    Release,
    StoredState,
    StoreEvent,
    Taken,
)
from penstock.auth.store.writer import partition_of_change
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.stores.disk import COMMIT_DELAY_S, RETRY_INTERVAL_S, DiskFull, DiskStore
from penstock.faults.world.stores.shared_database import PartitionsTaken, SharedDatabase


@dataclass(eq=False)
class Replica:
    """One process at the shared database, as `PostgresBackend` is in production. It is the `PartitionTable`."""

    database: SharedDatabase
    owner: str
    loop: ProcessLoop
    keeper: PartitionKeeper = field(init=False)

    def __post_init__(self) -> None:
        self.keeper = PartitionKeeper(self.owner, lambda _: None)

    def open(self) -> StoredState:
        """Register this process, take free partitions, and return the state."""
        events: list[StoreEvent] = []
        self.keeper.on_event = events.append
        self.database.register(self.owner, self.keeper.lease.ttl)
        self.look()
        return next((each.state for each in events if isinstance(each, Taken)), None) or self.read(())

    def look(self) -> None:
        self.keeper.look(self, time.monotonic(), time.monotonic)

    def commit(self, batch: list[PendingChange]) -> Exception | None:
        """Write a batch; an empty one renews the lease, and takes and gives partitions."""
        try:
            if batch:
                return self._write(batch)
            self.look()
        except DiskFull as error:
            return error
        return None

    def _write(self, batch: list[PendingChange]) -> PartitionsLost | None:
        epochs = self.keeper.epochs
        concerned = {found for each in batch if (found := partition_of_change(each)) is not None}
        if not concerned <= epochs.keys():
            return PartitionsLost(frozenset(concerned - epochs.keys()))
        try:
            self.database.write(self.owner, epochs, batch)
        except PartitionsTaken:
            lost = self.keeper.stale(self.renew(self.keeper.lease.ttl, self.keeper.presence))
            self.keeper.lose(lost)
            return PartitionsLost(frozenset(lost))
        for change, _ in batch:
            if isinstance(change, Release):
                self.keeper.on_released(change.partitions)
        return None

    # The table of the keeper. Transactions of other processes may run between two of this one.

    def renew(self, ttl: float, presence: Presence) -> View:
        return self.database.renew(self.owner, ttl, presence)

    def take(self, partitions: Collection[int], former: Collection[str]) -> dict[int, int]:
        del former  # a process without a lease has no session that could hold locks
        self.database.interleave(self.loop)
        return self.database.take(self.owner, partitions)

    def read(self, partitions: Collection[int]) -> StoredState:
        self.database.interleave(self.loop)
        return self.database.read(partitions)


@dataclass(eq=False)
class ReplicaStore(DiskStore):
    """The store of a process that shares its database. It looks at the partitions when the keeper requires it."""

    replica: Replica = field(kw_only=True)
    _handed_over: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None  # of the next commit or look

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epochs = dict(self.replica.keeper.epochs)
        self.replica.keeper.on_event = self._add_event
        self._schedule_look()

    def _add_event(self, event: StoreEvent) -> None:
        self._completed.append(event)

    @property
    def loop(self) -> ProcessLoop:
        return self.replica.loop

    def run_now(self) -> None:
        """Run the transaction that waits, as if its way to the database had been shorter."""
        if self._timer:
            self._timer.cancel()
        self._commit()

    def count_edges(self, edges: int) -> None:
        self.replica.keeper.edges = edges

    async def hand_over(self) -> None:
        self.replica.keeper.drain()
        self.write(Barrier(), lambda _: None)
        await self._handed_over.wait()

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        self.replica.database.waiting.pop(self, None)

    def _schedule_commit(self, seconds: float) -> asyncio.TimerHandle:
        if self._timer:
            self._timer.cancel()
        self._timer = super()._schedule_commit(seconds)
        self.replica.database.waiting[self] = None
        return self._timer

    def _schedule_look(self) -> None:
        delay = max(0.0, self.replica.keeper.due - time.monotonic())
        self._timer = self._loop.call_later(delay, self._on_look_due)

    def _on_look_due(self) -> None:
        if not self._is_committing:
            self._schedule_commit(self.rng.uniform(*COMMIT_DELAY_S))

    def _commit(self) -> None:
        self.replica.database.waiting.pop(self, None)
        super()._commit()
        if self._writer.is_available and time.monotonic() >= self.replica.keeper.due:
            self._writer.write([], is_probe_due=True)

    def _finish(self) -> None:
        super()._finish()
        if not self._is_committing:
            self._schedule_look()

    def _report_event(self, event: StoreEvent) -> None:
        if isinstance(event, HandedOver):
            self._handed_over.set()
        super()._report_event(event)


def store_opener(database: SharedDatabase, running_loop: Callable[[], ProcessLoop]) -> Callable[..., object]:
    """Return the replacement of auth's `opened_store` for processes that share a database."""

    @asynccontextmanager
    async def open_store(
        path: str,
        *,
        clock: Callable[[], float],
        instance_id: str = "",
        reports_usage: bool = False,
        **settings: object,
    ) -> AsyncIterator[tuple[DiskStore, StoredState]]:
        del path, settings
        database.reports_usage = reports_usage
        replica = Replica(database, instance_id, running_loop())
        await asyncio.sleep(database.rng.uniform(*COMMIT_DELAY_S))
        # A process that cannot open its store ends, and is started again until it can.
        while database.is_full:  # noqa: ASYNC110  # a database sends no event
            await asyncio.sleep(RETRY_INTERVAL_S)
        state = replica.open()
        store = ReplicaStore(database.rng, replica.commit, replica=replica)
        store.clock_offset = database.unix_time() - clock()
        yield store, state
        await store.flush()
        store.close()
        database.resign(replica.owner)

    return open_store
