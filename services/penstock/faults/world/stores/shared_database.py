"""The database that several auth processes share: partitions with owners and epochs, leases, and the tables of auth.

It has the semantics of `auth/store/postgres`: a transaction is written only if its partitions are still its writer's,
and leases are counted by the clock of the database, which is the world's.
"""

import random
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from penstock.auth.partitions.keeper import Member, PartitionRow, Presence, View
from penstock.auth.store.sqlite import sql
from penstock.auth.store.store import (
    Barrier,
    Change,
    Charged,
    ConfirmTotals,
    PendingChange,
    PutKey,
    PutShare,
    PutTenant,
    PutTotals,
    Release,
    Reserved,
    StoredState,
)
from penstock.auth.store.writer import partition_of_change
from penstock.faults.world.event_loop import ProcessLoop
from penstock.faults.world.host_clock import EPOCH_UNIX_S
from penstock.faults.world.stores.disk import Disk, DiskFull
from penstock.faults.world.world import World
from penstock.mesh.partitions import PARTITIONS, partition_of

INTERLEAVED_SHARE = 0.3  # share of transactions before which a waiting transaction of another process runs

_TENANT_BY_RESERVATION = """
    SELECT reservation_id, tenant_id FROM reservations UNION SELECT reservation_id, tenant_id FROM ledger
"""
_CONCURRENT = "SELECT count(*) FROM reservations WHERE tenant_id = ?"
_LIMIT = "SELECT concurrent_requests FROM tenants WHERE tenant_id = ?"


class PartitionsTaken(Exception):
    """Another process owns a partition of the transaction, or has owned it in the meantime."""


class WriterLease(NamedTuple):
    until: float  # s of the world
    presence: Presence = Presence(takes=False)


class WaitingTransaction(Protocol):
    """A process whose next transaction is on its way to the database."""

    @property
    def loop(self) -> ProcessLoop: ...

    def run_now(self) -> None: ...


class SharedDatabase(Disk):
    """One database. Each method is one transaction, and raises DiskFull if it writes while the disk is full."""

    def __init__(self, world: World, seed: int | str, *, offset_s: float = 0.0) -> None:
        """offset_s: s by which the clock of the database is ahead of the world's."""
        super().__init__(seed)
        self.world = world
        self._offset_s = offset_s
        self.rows = dict.fromkeys(range(PARTITIONS), PartitionRow("", 0))
        self.leases: dict[str, WriterLease] = {}  # by owner
        self.violations: list[str] = []
        self.waiting: dict[WaitingTransaction, None] = {}
        self._catalog_version = 0
        self._interleaving = random.Random(f"{seed} interleaving")

    def unix_time(self) -> float:
        return EPOCH_UNIX_S + self._offset_s + self.world.now

    # Leases and partitions.

    def register(self, owner: str, ttl: float) -> None:
        self._check_writable()
        self.leases[owner] = WriterLease(self.world.now + ttl)

    def renew(self, owner: str, ttl: float, presence: Presence) -> View:
        self._check_writable()
        now = self.world.now
        self.leases[owner] = WriterLease(now + ttl, presence)
        live = {name: Member(each.presence, each.until - now) for name, each in self.leases.items()}
        return View(
            dict(self.rows), {name: each for name, each in live.items() if each.lease_left > 0}, self._catalog_version
        )

    def take(self, owner: str, partitions: Collection[int]) -> dict[int, int]:
        """Take those of the partitions of which no other process has a lease. Return their new epochs."""
        self._check_writable()
        others = {name for name, each in self.leases.items() if name != owner and each.until > self.world.now}
        taken = [each for each in sorted(partitions) if self.rows[each].owner not in others]
        for each in taken:
            self.rows[each] = PartitionRow(owner, self.rows[each].epoch + 1)
        return {each: self.rows[each].epoch for each in taken}

    def resign(self, owner: str) -> None:
        """Release all partitions of a process that ends, and its lease."""
        if not self.is_full:
            self._release(owner, range(PARTITIONS))
            self.leases.pop(owner, None)

    def holds(self, owner: str, epochs: Mapping[int, int]) -> bool:
        """Return whether these partitions are still the owner's with these epochs."""
        return all(self.rows[partition][:2] == (owner, epoch) for partition, epoch in epochs.items())

    def _release(self, owner: str, partitions: Collection[int]) -> None:
        for each in partitions:
            if self.rows[each].owner == owner:
                self.rows[each] = PartitionRow("", self.rows[each].epoch)

    # State and changes.

    def read(self, partitions: Collection[int]) -> StoredState:
        """Return all tenants and keys, and the rest of the state of these partitions."""

        return self.restricted(sql.read(self.connection), partitions)

    def restricted(self, state: StoredState, partitions: Collection[int]) -> StoredState:
        """Return a state without balances, reservations, charges and grant uses of other partitions."""

        def is_chosen(tenant_id: str) -> bool:
            return partition_of(tenant_id) in partitions

        tenants = dict(self.connection.execute(_TENANT_BY_RESERVATION).fetchall())
        return state._replace(
            balances={name: each for name, each in state.balances.items() if is_chosen(name)},
            reservations=[each for each in state.reservations if is_chosen(each.request.tenant_id)],
            lost=[each for each in state.lost if is_chosen(each.request.tenant_id)],
            grant_uses=[each for each in state.grant_uses if is_chosen(tenants.get(each.reservation_id, ""))],
            charged=[each for each in state.charged if is_chosen(each.reservation.request.tenant_id)],
            scope_uses=[each for each in state.scope_uses if is_chosen(each.tenant_id)],
            shares=[each for each in state.shares if is_chosen(each.tenant_id)],
        )

    def put_catalog(self, changes: Collection[PutTenant | PutKey]) -> None:
        """Write tenants and keys before the first process starts."""
        for each in changes:
            sql.apply(self.connection, each)

    def write(self, owner: str, epochs: Mapping[int, int], batch: list[PendingChange]) -> None:
        """Write all changes or none. `epochs` has the partitions that the writer counts as its own.

        Raises PartitionsTaken or DiskFull.
        """
        self._check_writable()
        concerned = {each for change in batch if (each := partition_of_change(change)) is not None}
        if not self.holds(owner, {each: epochs[each] for each in concerned}):
            raise PartitionsTaken
        self.connection.execute("BEGIN")
        for pending in batch:
            change = pending[0]
            self._check_owner(owner, epochs, pending)
            sql.apply(self.connection, change, reports_usage=self.reports_usage)
            self._check_limit(change)
            if isinstance(change, Release):
                self._release(owner, change.partitions)
            elif not isinstance(change, Reserved | Charged | PutShare | PutTotals | ConfirmTotals | Barrier):
                self._catalog_version += 1
        self.connection.execute("COMMIT")
        for change, _ in batch:
            self.on_commit(change)

    def _check_writable(self) -> None:
        if self.is_full:
            raise DiskFull("database or disk is full")

    # Checks of what is written.

    def _check_owner(self, owner: str, epochs: Mapping[int, int], pending: PendingChange) -> None:
        """Record a violation if a change of a partition is written by another process than its owner."""
        partition = partition_of_change(pending)
        if partition is not None and self.rows[partition][:2] != (owner, epochs.get(partition)):
            row, name = self.rows[partition], type(pending[0]).__name__
            text = f"{name} of partition {partition}, which {row.owner or 'nobody'} owns with epoch {row.epoch}"
            self.violations.append(f"{owner}, with epoch {epochs.get(partition)}, wrote {text}")

    def _check_limit(self, change: Change) -> None:
        """Record a violation if auth admitted more concurrent requests than the tenant may have."""
        if not isinstance(change, Reserved) or change.grant_use:  # an edge admitted it under a grant
            return
        tenant_id = change.balance.tenant_id
        (limit,) = self.connection.execute(_LIMIT, (tenant_id,)).fetchone()
        (concurrent,) = self.connection.execute(_CONCURRENT, (tenant_id,)).fetchone()
        if limit and concurrent > limit:
            self.violations.append(f"{tenant_id} has {concurrent} concurrent requests, of {limit} that it may have")

    # Other processes.

    def interleave(self, loop: ProcessLoop) -> None:
        """Sometimes run a waiting transaction of another process now, before the next one of `loop`."""
        others = [each for each in self.waiting if each.loop is not loop and not each.loop.is_halted]
        if others and self._interleaving.random() < INTERLEAVED_SHARE:
            other = self._interleaving.choice(others)
            with self.world.running_as(other.loop):
                other.run_now()
