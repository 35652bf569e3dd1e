"""Worlds whose regions share the limits of tenants: one region is home, the others spend, and demand moves."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.auth.quota.budget_period import DAY_S
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.plan import (
    FAULT_DURATIONS_S,
    FaultKind,
    LimitScope,
    PlannedChange,
    PlannedFault,
    PlannedHome,
    PlannedRequest,
    PlannedTenant,
    WorldPlan,
)
from penstock.faults.regions.plans import ADDED_DELAY_S, REGION_FAULT_DURATIONS_S, linked
from penstock.faults.world.host_clock import EPOCH_UNIX_S, MAX_OFFSET_S
from penstock.faults.world.tiers import MeshShape

AUTH_DOOR_PORT = 98  # from the first port of a region; its region door for auth of other regions
SPEND_PERIOD_S = 8.0  # s; limited tenants send requests, and faults strike, within it
LENGTHS = range(3, 40)  # tokens of prompts; those of other requests of the world are left out
BURSTS = (7, 12)  # range; each is of one tenant, in one region
BURST_REQUESTS = (2, 3)
BURST_S = 0.05
OUTPUT_TOKENS = (1, 6)
CANCEL_SHARE = 0.1
TOKENS_PER_MINUTE = (200, 800)  # range; half of it is above each request
BUDGET_TOKENS = (200, 500)  # range; half of it is above each request
MIDNIGHT_SHARE = 0.3  # share of worlds in which a day ends
# s by which clocks differ from each other's mean then. Budgets of a day hold if clocks differ by less than 60 s.
MIDNIGHT_SKEW_S = 20.0
DAY_ENDS_AFTER_S = DAY_S - EPOCH_UNIX_S % DAY_S  # s of the world
DATABASE_SHARE = 0.4  # share of regions in which one or two replicas of auth share a database
MAX_CHANGES = 2
MAX_HOME_FAULTS = 3
_FOLLOW = "penstock.mesh.v1.RegionQuotaService/Follow"
FOLLOW_FAILPOINTS = (
    *(Failpoint(_FOLLOW, TO_SERVER, kind) for kind in ("join", "begin", "demand", "held", "usage")),
    *(Failpoint(_FOLLOW, TO_CLIENT, kind) for kind in ("owned_partitions", "catalog", "share", "usage_confirmed")),
)
SHARE_FAILPOINTS = (Failpoint(_FOLLOW, TO_CLIENT, "share"), Failpoint(_FOLLOW, TO_SERVER, "held"))
HOME_FAULT_WEIGHTS = {
    FaultKind.KILL: 4,
    FaultKind.TERM: 2,
    FaultKind.FREEZE: 3,
    FaultKind.RESET: 2,
    FaultKind.PARTITION: 2,
    FaultKind.DISK_FULL: 2,
    FaultKind.CUT: 4,
    FaultKind.SLOW_LINK: 2,
}
LINK_FAULTS = frozenset({FaultKind.RESET, FaultKind.PARTITION})  # of the connection that a frame passes


def auth_door_of(shape: MeshShape) -> str:
    """Return the address at which other regions reach auth of a region."""
    return f"127.0.0.1:{shape.first_port + AUTH_DOOR_PORT}"


def with_home(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Let the regions of a world share limits, and add faults of auth and its links, if there are any faults."""
    faults = (*plan.faults[:1], *random_home_faults(rng)) if plan.faults else ()
    return replace(with_shared_limits(plan, rng), faults=faults)


def with_shared_limits(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Let the regions of a world share the limits of more tenants, which send requests now here and now there."""
    assert plan.border, "a world of several regions"
    names = [each.region for each in plan.shape.regions]
    home = rng.choice(names)
    tenants = (*plan.tenants, *_with_scopes(_limited_tenants(rng), random.Random(f"{plan.seed} scopes")))
    limited = range(len(plan.tenants), len(tenants))
    planned = PlannedHome(
        region=home,
        changes=_random_changes(rng, limited),
        offsets_s=_random_offsets(rng, len(names)),
        databases=tuple(rng.random() < DATABASE_SHARE for _ in names),
    )
    return replace(
        plan,
        shape=_shapes(plan.shape, rng, planned),
        tenants=tenants,
        requests=(*plan.requests, *_bursts(plan, rng, len(names), limited)),
        # A limit per minute counts by the clock of auth, which a restart sets to that of the host.
        clock_steps=tuple(each for each in plan.clock_steps if each.tier != "auth"),
        border=replace(plan.border, home=planned),
    )


def _shapes(shape: MeshShape, rng: random.Random, home: PlannedHome) -> MeshShape:
    others = tuple(each.region for each in shape.regions if each.region != home.region)
    door = next(auth_door_of(each) for each in shape.regions if each.region == home.region)
    shapes = []
    for each, database in zip(shape.regions, home.databases, strict=True):
        auths = rng.choice((1, 2)) if database else 1
        is_home = each.region == home.region
        roles = {"spending_regions": others} if is_home else {"home_door": door}
        shapes.append(replace(each, auths=auths, home=home.region, **roles))
    return linked(shapes)


def _random_offsets(rng: random.Random, regions: int) -> tuple[float, ...]:
    """Return clocks that differ, in some worlds less, because a day ends there."""
    if rng.random() >= MIDNIGHT_SHARE:
        return tuple(rng.uniform(-MAX_OFFSET_S, MAX_OFFSET_S) for _ in range(regions))
    middle = DAY_ENDS_AFTER_S - rng.uniform(0.0, 2 * SPEND_PERIOD_S)
    return tuple(middle + rng.uniform(-MIDNIGHT_SKEW_S, MIDNIGHT_SKEW_S) for _ in range(regions))


def _limited_tenants(rng: random.Random) -> list[PlannedTenant]:
    tenants = [
        PlannedTenant(tenant_id="hooli", tokens_per_minute=rng.randint(*TOKENS_PER_MINUTE)),
        PlannedTenant(tenant_id="initech", concurrent_requests=rng.choice((1, 2, 4))),
        _with_budget(rng),
    ]
    return sorted(rng.sample(tenants, 2), key=lambda each: each.tenant_id)


def _with_budget(rng: random.Random) -> PlannedTenant:
    amount = rng.randint(*BUDGET_TOKENS)
    if rng.random() < 0.5:
        return PlannedTenant(tenant_id="umbrella", tokens_per_day=amount)
    return PlannedTenant(tenant_id="umbrella", tokens_per_month=amount)


def _with_scopes(tenants: Sequence[PlannedTenant], rng: random.Random) -> Iterator[PlannedTenant]:
    """Let the limits of some tenants be those of their key or of their model."""
    for each in tenants:
        has_budget = each.tokens_per_day or each.tokens_per_month
        scopes = (LimitScope.TENANT, LimitScope.KEY) if has_budget else tuple(LimitScope)
        yield replace(each, scope=rng.choice(scopes))


def _random_changes(rng: random.Random, tenants: Sequence[int]) -> tuple[PlannedChange, ...]:
    return tuple(
        PlannedChange(
            at=rng.uniform(0.0, SPEND_PERIOD_S),
            tenant=rng.choice(tenants),
            factor=rng.choice((None, 0.5, 0.5, 2.0)),
        )
        for _ in range(rng.randint(0, MAX_CHANGES))
    )


def _bursts(plan: WorldPlan, rng: random.Random, regions: int, tenants: Sequence[int]) -> list[PlannedRequest]:
    """Return bursts of requests, each of one tenant in another region than its last one, so that shares must move."""
    used = {len(each.prompt) for each in plan.requests}
    lengths = [each for each in LENGTHS if each not in used]
    rng.shuffle(lengths)
    found: list[PlannedRequest] = []
    places = {tenant: rng.randrange(regions) for tenant in tenants}
    for starts_at in sorted(rng.uniform(0.0, SPEND_PERIOD_S) for _ in range(rng.randint(*BURSTS))):
        tenant = rng.choice(tenants)
        region = places[tenant] = (places[tenant] + rng.randint(1, regions - 1)) % regions
        burst = [lengths.pop() for _ in range(min(rng.randint(*BURST_REQUESTS), len(lengths)))]
        found += [_request(rng, each, starts_at, region=region, tenant=tenant) for each in burst]
    return found


def _request(rng: random.Random, length: int, burst_at: float, *, region: int, tenant: int) -> PlannedRequest:
    tokens = rng.randint(*OUTPUT_TOKENS)
    return PlannedRequest(
        starts_at=burst_at + rng.uniform(0.0, BURST_S),
        prompt=tuple((place * 5 + 2) % 26 for place in range(length)),
        max_output_tokens=tokens,
        seed=rng.getrandbits(64),
        ignore_eos=True,
        cancel_after_tokens=rng.randint(0, tokens) if rng.random() < CANCEL_SHARE else None,
        uses_session=rng.random() < 0.3,
        region=region,
        tenant=tenant,
    )


def random_home_faults(rng: random.Random) -> tuple[PlannedFault, ...]:
    """Return faults of auth and of links, at any time or at a frame between auth of two regions."""
    return tuple(_random_fault(rng) for _ in range(rng.randint(1, MAX_HOME_FAULTS)))


def _random_fault(rng: random.Random) -> PlannedFault:
    kind = rng.choices(list(HOME_FAULT_WEIGHTS), list(HOME_FAULT_WEIGHTS.values()))[0]
    is_timed = kind not in LINK_FAULTS and rng.random() < 0.4
    return PlannedFault(
        kind=kind,
        duration_s=rng.uniform(*(FAULT_DURATIONS_S | REGION_FAULT_DURATIONS_S)[kind]),
        victim_tier="auth",
        victim_pick=rng.random(),
        at=rng.uniform(0.0, SPEND_PERIOD_S),
        failpoint=None if is_timed else rng.choice((*FOLLOW_FAILPOINTS, *SHARE_FAILPOINTS, *SHARE_FAILPOINTS)),
        frame_number=rng.choice((1, 1, 2, 3, 4)),
        is_one_way=rng.random() < 0.5,
        added_delay_s=rng.uniform(*ADDED_DELAY_S),
    )
