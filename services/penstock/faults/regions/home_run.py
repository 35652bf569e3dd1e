"""The home region of a world: its operator, what is left over between regions, and the checks of shared limits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock.auth.admin.messages import tenant_message
from penstock.auth.admin.policies import key_limits_message
from penstock.auth.authorizer import Authorizer
from penstock.auth.identity.keys import Key
from penstock.auth.regions.share import ScopeKey, Share
from penstock.auth.store.sqlite import sql
from penstock.auth.store.store import Change, PutShare, Reserved
from penstock.chassis.errors import PenstockError
from penstock.chassis.security.identity import START_SEPARATOR
from penstock.faults.checks.checker import Violation
from penstock.faults.checks.replicas import misplaced_partitions
from penstock.faults.checks.shared_limits import (
    SUMS_OF_LEDGER,
    SUMS_OF_TOTALS,
    TOTALS_OF_REGION,
    LimitWatch,
    ShareWatch,
    check_revoked,
    check_whole,
)
from penstock.faults.plan import LimitScope, PlannedBorder, PlannedChange, PlannedHome, PlannedTenant, WorldPlan
from penstock.faults.regions.disks import RegionDisks
from penstock.faults.world.host_clock import EPOCH_UNIX_S
from penstock.faults.world.process import Process
from penstock.faults.world.stores.disk import Disk
from penstock.faults.world.stores.shared_database import SharedDatabase
from penstock.faults.world.tenants import catalog, key_policy_of, tenant_of
from penstock.faults.world.tiers import Tiers
from penstock.faults.world.world import World
from penstock.mesh.partitions import partition_of
from penstock.v1 import admin_pb2 as pb

WATCH_INTERVAL_S = 0.02  # s between two checks of what processes enforce; less than a frame to another region takes
OPERATOR_PATIENCE_S = 1.0  # s after which the operator repeats a change
# s after the last fault, and after a revocation, in which a region may not know of it: until it follows its home again.
REVOCATION_S = 4.0


@dataclass(eq=False)
class HomeRun:
    """What a world has besides, if its regions share limits."""

    plan: WorldPlan
    home: PlannedHome
    tiers: Tiers
    disks: RegionDisks
    changed_at: dict[PlannedChange, float] = field(default_factory=dict)  # s of the world
    shares: ShareWatch = field(default_factory=ShareWatch)
    limits: LimitWatch = field(init=False)

    def __post_init__(self) -> None:
        self.limits = LimitWatch(self._most, len(self.disks.by_region))
        for region, disk in self.disks.by_region.items():
            disk.on_commit = partial(self._on_commit, region)

    @property
    def _most(self) -> Mapping[str, PlannedTenant]:
        """The tenants with the highest limits that are ever in force."""
        factors: dict[int, float] = {}
        for each in self.home.changes:
            factors[each.tenant] = max(factors.get(each.tenant, 1.0), each.factor or 0.0)
        tenants = enumerate(self.plan.tenants)
        return {each.tenant_id: _scaled(each, factors.get(number, 1.0)) for number, each in tenants}

    @property
    def revoked_tenants(self) -> set[int]:
        return {each.tenant for each in self.home.changes if each.factor is None}

    # The operator.

    def start(self) -> None:
        """Schedule the changes, as the load begins, and watch what processes enforce from then on."""
        world = self.tiers.network.world
        self._watch()
        for each in self.home.changes:
            world.schedule(world.now + each.at, self._change, each)

    def _change(self, change: PlannedChange) -> None:
        """Make a change at each process of the home region in turn, until one has made it."""
        if change in self.changed_at:
            return
        world = self.tiers.network.world
        admins = [(each, admin) for each in self._auths(self.home.region) if (admin := self._admin(each))]
        if admins:
            process, admin = admins[int(world.now / OPERATOR_PATIENCE_S) % len(admins)]
            assert process.loop, "it serves"
            with world.running_as(process.loop):
                process.loop.create_task(self._apply(admin, change))
        world.schedule(world.now + OPERATOR_PATIENCE_S, self._change, change)

    async def _apply(self, admin: Any, change: PlannedChange) -> None:
        try:
            await _make(admin, self.plan.tenants[change.tenant], change.factor)
        except PenstockError:
            return  # the operator repeats it
        self.changed_at.setdefault(change, self.tiers.network.world.now)

    # What is stored.

    def _on_commit(self, region: str, change: Change) -> None:
        at = self._world_time(region, change.reservation.reserved_at) if isinstance(change, Reserved) else 0.0
        self.limits.on_commit(region, change, at)
        if isinstance(change, PutShare):
            self.shares.on_commit(change.row, is_home=region == self.home.region)

    def _world_time(self, region: str, unix_s: float) -> float:
        """Return the time of the world at which auth of a region reads a time; with replicas, nearly."""
        disk = self.disks.by_region[region]
        if isinstance(disk, SharedDatabase):
            return unix_s - disk.unix_time() + disk.world.now
        clock = self.tiers.network.world.clocks[f"{region}-auth0"]
        return (unix_s - EPOCH_UNIX_S - clock.offset_s) / clock.rate

    def _watch(self) -> None:
        world = self.tiers.network.world
        for key in self.shares.scopes:
            self.shares.check_enforced(key, self._enforced(key))
        world.schedule(world.now + WATCH_INTERVAL_S, self._watch)

    def _enforced(self, key: ScopeKey) -> dict[str, Share]:
        """Return the shares that the regions enforce now. One whose process does not run spends nothing."""
        return {region: self._enforced_by(region, key) for region in self.disks.by_region}

    def _enforced_by(self, region: str, key: ScopeKey) -> Share:
        for process in self._auths(region):
            authorizer = self._authorizer(process)
            if authorizer and self._is_owner(region, process, key[0]) and authorizer.served.has_tenant(key[0]):
                quota = authorizer.reservations.shared_quota(key[0])
                return quota.share_of(key[1]) if quota else Share(0, 0)
        return Share(0, 0)

    def _auths(self, region: str) -> list[Process]:
        return [each for each in self.tiers.of("auth") if each.name.startswith(f"{region}-")]

    def _admin(self, process: Process) -> Any:
        """Return the Admin service of a process that serves; None if it does not."""
        server: Any = self.tiers.network.listeners.get(process.address)
        return server.admin if server and process.is_up and not process.is_frozen else None

    def _authorizer(self, process: Process) -> Authorizer | None:
        server: Any = self.tiers.network.listeners.get(process.address)
        return server.admin._authorizer if server else None  # noqa: SLF001  # what it enforces is not in its figures

    def _is_owner(self, region: str, process: Process, tenant_id: str) -> bool:
        disk = self.disks.by_region[region]
        if not isinstance(disk, SharedDatabase):
            return True
        return disk.rows[partition_of(tenant_id)].owner == f"{process.name}{START_SEPARATOR}{process.start_count}"

    # At rest.

    def leftovers(self) -> Iterator[Violation]:
        """Yield what regions have not told each other yet."""
        for change in self.home.changes:
            if change not in self.changed_at:
                yield Violation("operator", f"{change} was not made")
        for key in sorted(self.shares.scopes):
            yield from check_whole(key, self._enforced(key))
        yield from self._unfollowed()
        for region, disk in self.disks.by_region.items():
            if isinstance(disk, SharedDatabase):
                yield from misplaced_partitions(disk, self._auths(region), self.tiers.network)
            if region != self.home.region:
                yield from self._unequal_catalog(region)
                yield from self._unequal_totals(region)

    def _unfollowed(self) -> Iterator[Violation]:
        """Yield processes that do not follow the home region, and streams that only one side has."""
        streams = {"home_streams": 0.0, "follower_streams": 0.0}
        for region in self.disks.by_region:
            for process in self._auths(region):
                admin = self._admin(process)
                figures = admin._figures() if admin else {}  # noqa: SLF001  # as the server of the world reads them
                for name in streams:
                    streams[name] += figures.get(name, 0.0)
                if figures.get("home_unfollowed", 0.0):
                    yield Violation("home", f"{process.name} does not follow {self.home.region}")
        if streams["home_streams"] != streams["follower_streams"]:
            yield Violation("leak", f"streams between auth of regions: {streams}")

    def _unequal_catalog(self, region: str) -> Iterator[Violation]:
        own, home = (sql.read(self.disks.by_region[each].connection) for each in (region, self.home.region))
        if unequal := set(own.tenants) ^ set(home.tenants):
            yield Violation("catalog", f"{region} and its home differ in {unequal}")
        if unequal_keys := set(map(_stated, own.keys)) ^ set(map(_stated, home.keys)):
            yield Violation("catalog", f"{region} and its home differ in {unequal_keys}")

    def _unequal_totals(self, region: str) -> Iterator[Violation]:
        own, home = (self._query(each, TOTALS_OF_REGION, region) for each in (region, self.home.region))
        if own != home:
            yield Violation("usage", f"the totals of {region} are {own}, its home has {home}")

    def _query(self, region: str, statement: str, *values: object) -> list[Any]:
        return self.disks.by_region[region].connection.execute(statement, values).fetchall()

    # At the end.

    def violations(self, faults_end_at: float) -> Iterator[Violation]:
        yield from self.shares.violations
        yield from self.limits.violations
        yield from self.limits.check()
        for change, at in self.changed_at.items():
            if change.factor is None:
                tenant_id = self.plan.tenants[change.tenant].tenant_id
                effective_at = max(at, faults_end_at) + REVOCATION_S
                yield from check_revoked(self.limits.admissions[tenant_id], tenant_id, effective_at)
        for region, disk in self.disks.by_region.items():
            totals, ledger = (self._query(region, each, region) for each in (SUMS_OF_TOTALS, SUMS_OF_LEDGER))
            if totals != ledger:
                yield Violation("usage", f"the totals of {region} are {totals}, the sums of its ledger {ledger}")
            if isinstance(disk, SharedDatabase):
                yield from (Violation("owner", each) for each in disk.violations)


def region_disks(plan: WorldPlan, border: PlannedBorder, world: World) -> RegionDisks:
    """Return the stores of a world. The home region alone has tenants and keys; without one, each region has them."""
    home, names = border.home, [each.region for each in plan.shape.regions]
    disks: dict[str, Disk] = {}
    for number, name in enumerate(names):
        seed = f"{plan.seed} {name}"
        is_shared = bool(home and home.databases[number])
        disks[name] = SharedDatabase(world, seed, offset_s=home.offsets_s[number]) if home and is_shared else Disk(seed)
    changes = list(catalog(plan.tenants))
    return RegionDisks(disks, dict.fromkeys([home.region] if home else names, changes))


def set_clocks(plan: WorldPlan, home: PlannedHome, world: World) -> None:
    """Set the clock of the host of each auth that has a disk. Others follow their database."""
    for shape, offset_s in zip(plan.shape.regions, home.offsets_s, strict=True):
        [name, *_] = shape.names("auth")
        world.clocks[name] = replace(world.clocks[name], offset_s=offset_s)


def _stated(key: Key) -> Key:
    """Return a key without the time of its revocation, which messages round."""
    return replace(key, revoked_at=None if key.revoked_at is None else 0.0)


async def _make(admin: Any, tenant: PlannedTenant, factor: float | None) -> None:
    """Make a change at Admin of one process. Raises PenstockError."""
    if factor is None:
        await admin.RevokeKey(pb.RevokeKeyRequest(key_id=tenant.tenant_id), None)
        return
    scaled = _scaled(tenant, factor)
    if tenant.scope is LimitScope.KEY:
        limits = key_limits_message(key_policy_of(scaled))
        await admin.PutKeyLimits(pb.PutKeyLimitsRequest(key_id=tenant.tenant_id, limits=limits), None)
    else:
        await admin.PutTenant(pb.PutTenantRequest(tenant=tenant_message(tenant_of(scaled))), None)


def _scaled(tenant: PlannedTenant, factor: float) -> PlannedTenant:
    return replace(
        tenant,
        concurrent_requests=_limit(tenant.concurrent_requests, factor),
        tokens_per_minute=_limit(tenant.tokens_per_minute, factor),
        tokens_per_month=_limit(tenant.tokens_per_month, factor),
        tokens_per_day=_limit(tenant.tokens_per_day, factor),
    )


def _limit(limit: int, factor: float) -> int:
    return max(1, int(limit * factor)) if limit else 0
