"""The keeper: renews the lease of one replica, and takes, gives and loses partitions. `now` is an argument.

Correctness does not depend on leases or clocks: each takeover raises the epoch of a partition, and each transaction
compares it. A lease decides only when others may take over.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock.auth.partitions.lease import RENEWAL_INTERVAL_S, PartitionLease
from penstock.auth.partitions.plan import FREE, RESERVED, Plan, plan_partitions
from penstock.auth.store.store import CatalogChanged, Giving, HandedOver, Lost, OnEvent, StoredState, Taken

FAST_INTERVAL_S = 0.01  # s between looks while partitions are on their way to this replica or from it
JOIN_TIMEOUT_S = 20.0  # s; an edge looks for new replicas every 5 s
FAST_LOOKS = 1_000  # in a row; then the owner of the awaited partitions does not give them, and looks are rare again
# s from the announcement of a drain until the first partition is given: the others then look fast
NOTICE_S = 2 * RENEWAL_INTERVAL_S


class PartitionRow(NamedTuple):
    """One partition in the store."""

    owner: str  # empty: none
    epoch: int
    is_leased: bool = False  # by the process of a release whose leases are of partitions


class Presence(NamedTuple):
    """What a replica says of itself when it renews its lease."""

    takes: bool  # whether it takes partitions: edges are connected to it, and it does not drain
    edges: int = 0  # connected ones


class Member(NamedTuple):
    """A replica whose lease has not ended."""

    presence: Presence
    lease_left: float  # s
    address: str = ""  # for operators


class View(NamedTuple):
    """The state of all replicas, as one transaction has read it."""

    rows: Mapping[int, PartitionRow]  # by partition
    members: Mapping[str, Member]  # by owner
    catalog_version: int


class PartitionTable(Protocol):
    """Partitions and leases in the store. Each method is one transaction, and raises the error of the store."""

    def renew(self, ttl: float, presence: Presence) -> View:
        """Renew the lease of this replica for `ttl` s; return the state afterwards."""

    def take(self, partitions: Collection[int], former: Collection[str]) -> dict[int, int]:
        """Take those of the partitions that have no owner with a lease. Return their new epochs.

        `former` are owners without a lease.
        """

    def read(self, partitions: Collection[int]) -> StoredState:
        """Return all tenants and keys, and the rest of the state of these partitions."""


@dataclass(eq=False)
class PartitionKeeper:
    """Owns partitions on behalf of one process."""

    owner: str
    on_event: OnEvent
    lease: PartitionLease = field(default_factory=PartitionLease)
    epochs: dict[int, int] = field(default_factory=dict)  # of owned partitions, those that are being given included
    is_draining: bool = False
    edges: int = 0  # that are connected to this process
    addresses: dict[int, str] = field(default_factory=dict)  # of the owner of each partition, at the latest look
    takes_lapsed_at: float = 0.0  # s; until then, a replica without a lease is assumed to renew it soon
    _giving: set[int] = field(default_factory=set)  # given or lost, and `Release` is not committed yet
    _look_due: float = 0.0  # s
    _fast_looks: int = 0
    _notice_until: float | None = None  # s
    _has_joined: bool = False
    _join_until: float | None = None  # s
    _catalog_version: int | None = None
    _is_handed_over: bool = False

    @property
    def due(self) -> float:
        """Time in s from which `look` must be called."""
        return min(self._look_due, self.lease.renewal_due)

    def look(self, table: PartitionTable, now: float, clock: Callable[[], float]) -> None:
        """Renew the lease, and do what the state of the other replicas requires. Raises the errors of the table."""
        view = table.renew(self.lease.ttl, self.presence)
        self.lease.on_renewed(now)
        self._join(view, now)
        self._find_lost(view)
        self.addresses = {partition: _address(row, view) for partition, row in view.rows.items()}
        lapsed = {each.owner for each in view.rows.values() if each.owner and self._has_lapsed(each, view, now)}
        plan = self._plan(view, lapsed)
        if plan.take:
            self._take(table, plan.take, lapsed, view.catalog_version)
        elif self._catalog_version != view.catalog_version:
            self._read_catalog(table, view.catalog_version)
        is_noticed = not self.is_draining or self._is_noticed(clock())
        if plan.give and not self._giving and is_noticed:
            self._giving |= set(plan.give)
            self.on_event(Giving(frozenset(plan.give)))
        if self.is_draining and not self._is_handed_over and not (self.epochs and self._takers(view)):
            self._is_handed_over = True
            self.on_event(HandedOver())
        self._schedule(view, plan, clock())

    @property
    def presence(self) -> Presence:
        return Presence(self._has_joined and not self.is_draining, self.edges)

    def drain(self) -> None:
        """Give all partitions to other replicas, from the next look on, which is due at once."""
        self.is_draining = True
        self._look_due = 0.0

    def lose(self, partitions: Collection[int]) -> None:
        """Count partitions as lost, whose epochs have changed.

        They are not taken again before `Release` is committed: until then, changes of the lost epoch may wait, and
        they would be committed under the new one.
        """
        lost = frozenset(partitions) & self.epochs.keys()
        for each in lost:
            del self.epochs[each]
        self._giving |= lost
        if lost:
            self.on_event(Lost(lost))

    def on_released(self, partitions: Collection[int]) -> None:
        """Count partitions as released: `Release` is committed."""
        for each in partitions:
            self.epochs.pop(each, None)
        self._giving -= set(partitions)
        self._look_due = 0.0

    def stale(self, view: View) -> set[int]:
        """Return the owned partitions that another owner or another epoch has."""
        owned = self.epochs.items()
        return {each for each, epoch in owned if view.rows[each][:2] != (self.owner, epoch)}

    def _join(self, view: View, now: float) -> None:
        """Take partitions from the others only once as many edges are connected here as to each of them.

        Requests of a partition would wait for an owner to which their edge is not connected.
        """
        if self._has_joined:
            return
        if self._join_until is None:
            self._join_until = now + JOIN_TIMEOUT_S
        most = max((each.presence.edges for each in self._takers(view)), default=0)
        self._has_joined = self.edges >= most or now >= self._join_until

    def _takers(self, view: View) -> list[Member]:
        """Return the other replicas that take partitions."""
        return [each for name, each in view.members.items() if name != self.owner and each.presence.takes]

    def _find_lost(self, view: View) -> None:
        self.lose(self.stale(view))

    def _has_lapsed(self, row: PartitionRow, view: View, now: float) -> bool:
        return row.owner not in view.members and not row.is_leased and now >= self.takes_lapsed_at

    def _plan(self, view: View, lapsed: Collection[str]) -> Plan:
        members = [name for name, each in view.members.items() if each.presence.takes and name != self.owner]
        if self.presence.takes:
            members.append(self.owner)
        owners = {partition: self._owner_for_plan(partition, row, lapsed) for partition, row in view.rows.items()}
        return plan_partitions(self.owner, members, owners)

    def _owner_for_plan(self, partition: int, row: PartitionRow, lapsed: Collection[str]) -> str:
        is_own = row.owner == self.owner
        if partition in self._giving:
            return RESERVED if is_own or row.owner in (FREE, *lapsed) else row.owner
        if row.owner in lapsed:
            return FREE
        # A partition that is this replica's in the store alone was taken, and its state could not be read.
        return FREE if is_own and partition not in self.epochs else row.owner

    def _take(
        self, table: PartitionTable, partitions: Collection[int], lapsed: Collection[str], catalog_version: int
    ) -> None:
        if epochs := table.take(partitions, lapsed):
            state = table.read(epochs)
            self.epochs |= epochs
            self._catalog_version = catalog_version  # at least: the state was read later
            self.on_event(Taken(epochs, state))

    def _read_catalog(self, table: PartitionTable, version: int) -> None:
        state = table.read(())
        self._catalog_version = version
        self.on_event(CatalogChanged(state.tenants, state.keys, state.prices, state.routes))

    def _is_noticed(self, now: float) -> bool:
        if self._notice_until is None:
            self._notice_until = now + NOTICE_S
        return now >= self._notice_until

    def _schedule(self, view: View, plan: Plan, now: float) -> None:
        moves = plan.awaits or plan.take or plan.give or self._giving or self.is_draining
        self._fast_looks = self._fast_looks + 1 if moves else 0
        if moves and self._fast_looks < FAST_LOOKS:
            self._look_due = now + FAST_INTERVAL_S
            return
        others = [each.lease_left for name, each in view.members.items() if name != self.owner]
        self._look_due = now + max(FAST_INTERVAL_S, min([self.lease.renewal_interval, *others]))


def _address(row: PartitionRow, view: View) -> str:
    owner = view.members.get(row.owner)
    return owner.address if owner else ""
