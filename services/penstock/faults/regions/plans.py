"""Regions of a world: sampled from its seed, with tenants that stay in some of them and faults of their links."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.plan import (
    DEFAULT_TENANTS,
    FAULT_DURATIONS_S,
    FAULT_FREE_SHARE,
    LOAD_PERIOD_S,
    MAX_FAULTS,
    FaultKind,
    PlannedBorder,
    PlannedFault,
    PlannedRequest,
    PlannedTenant,
    WorldPlan,
)
from penstock.faults.world.tiers import BASE_PORT, MeshShape

REGIONS = ("eu", "us", "ap")
PORTS_PER_REGION = 1_000
DOOR_PORT = 99  # from the first port of a region
TRIP_S = (0.005, 0.12)  # range of s from one region to another, one way
OVERLOAD_SHARE = 0.7  # share of worlds whose first region rejects most requests
OVERLOAD_REQUESTS = (4, 7)  # range; they arrive at once, and the region has one slot
OVERLOAD_PROMPT_TOKENS = range(64, 90)  # longer than all others and than the probes
OVERLOAD_OUTPUT_TOKENS = (12, 24)
RESPONSE_BUFFER_BYTES = 65_536  # no client stops reading
SHORTEST_KV_BLOCKS = 32  # so that the longest request fits an engine
RESIDENT_SHARE = 0.6  # share of the requests of a world that may be of a resident tenant
AWAY_SHARE = 0.1  # share of the requests of resident tenants that begin in a region which the tenant does not allow
ALL_OVERLOADED_SHARE = 0.25  # share of these worlds with faults whose other regions are overloaded as well
FULLY_READ_REQUESTS = 3  # of an overloaded region; clients may cancel the others
CANCEL_SHARE = 0.5
REGION_FAULT_SHARE = 0.5  # share of the faults that concern a region or a link, and not one process
GUEST_FAULT_SHARE = 0.3  # share of the faults of an overload that strike an edge at a frame between two regions
GUEST_FAULT_WEIGHTS = {
    FaultKind.KILL: 2,
    FaultKind.TERM: 3,
    FaultKind.FREEZE: 2,
    FaultKind.RESET: 2,
    FaultKind.PARTITION: 2,
}
REGION_FAULT_WEIGHTS = {FaultKind.REGION_KILL: 3, FaultKind.CUT: 5, FaultKind.SLOW_LINK: 3}
REGION_FAULT_DURATIONS_S = {
    FaultKind.REGION_KILL: (0.1, 4.0),
    FaultKind.CUT: (0.05, 12.0),
    FaultKind.SLOW_LINK: (0.2, 8.0),
}
ADDED_DELAY_S = (0.02, 1.5)  # range of s, one way
_RUN = "penstock.mesh.v1.RegionService/Run"
BORDER_FAILPOINTS = (
    *(Failpoint(_RUN, TO_SERVER, kind) for kind in ("offer", "cancel")),
    *(Failpoint(_RUN, TO_CLIENT, kind) for kind in ("started", "step", "rejected", "finished", "cancelled", "failed")),
)
# Most spilled requests pass them. Rejections, cancels and hand-overs occur in a tenth of the worlds.
COMMON_BORDER_FAILPOINTS = (BORDER_FAILPOINTS[0], *BORDER_FAILPOINTS[2:4], BORDER_FAILPOINTS[5])


def door_of(shape: MeshShape) -> str:
    """Return the address of the region door."""
    return f"127.0.0.1:{shape.first_port + DOOR_PORT}"


def with_regions(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Let several regions serve the requests; the first one may be overloaded, and faults may strike the links."""
    is_overloaded = rng.random() < OVERLOAD_SHARE
    faults = () if rng.random() < FAULT_FREE_SHARE else _random_faults(plan, rng, is_overloaded=is_overloaded)
    return replace(_with_regions(plan, rng, is_overloaded=is_overloaded, has_faults=bool(faults)), faults=faults)


def with_overload(plan: WorldPlan, rng: random.Random, *faults: PlannedFault) -> WorldPlan:
    """Return a world with these faults alone, of which the first region is overloaded."""
    return replace(_with_regions(plan, rng, is_overloaded=True, has_faults=bool(faults)), faults=faults)


def _with_regions(plan: WorldPlan, rng: random.Random, *, is_overloaded: bool, has_faults: bool) -> WorldPlan:
    names = REGIONS[: rng.choice((2, 2, 3))]
    tenants = _random_tenants(rng, names)
    plain = (replace(each, crash_token_index=None, stall_after_tokens=None) for each in plan.requests)
    requests = [_in_region(each, rng, names, tenants) for each in plain]
    overloaded = int(is_overloaded)
    if is_overloaded:
        requests += _overload(rng)
        if has_faults and rng.random() < ALL_OVERLOADED_SHARE:
            overloaded = len(names)
    return replace(
        plan,
        shape=_random_regions(plan.shape, rng, names, overloaded=overloaded),
        requests=tuple(requests),
        token_counts=(),
        responses=(),
        tenants=tenants,
        border=PlannedBorder(trip_s=rng.uniform(*TRIP_S), must_spill=is_overloaded and not has_faults),
    )


def _random_regions(base: MeshShape, rng: random.Random, names: tuple[str, ...], *, overloaded: int) -> MeshShape:
    """Return one mesh for each name, of which the first `overloaded` ones let one ticket wait."""
    shapes = []
    for number, name in enumerate(names):
        shape = replace(
            base,
            region=name,
            auths=1,
            has_responses=False,
            response_buffer_bytes=RESPONSE_BUFFER_BYTES,
            first_port=BASE_PORT + PORTS_PER_REGION * number,
            kv_blocks=max(base.kv_blocks, SHORTEST_KV_BLOCKS),
            edges=rng.choice((1, 2)),
            queues=rng.choice((1, 2)),
            schedulers=rng.choice((1, 2)),
            workers=rng.choice((1, 2)),
        )
        shapes.append(shape)
    for number in range(overloaded):
        shapes[number] = replace(shapes[number], queues=1, workers=1, slots=1, max_depth=1)
    doors = [f"{each.region}={door_of(each)}" for each in shapes]
    return linked(replace(each, doors=(*doors[number + 1 :], *doors[:number])) for number, each in enumerate(shapes))


def linked(shapes: Iterable[MeshShape]) -> MeshShape:
    """Return the first shape, which leads to the others."""
    *others, last = shapes
    chain_of_shapes = replace(last, other=None)
    for each in reversed(others):
        chain_of_shapes = replace(each, other=chain_of_shapes)
    return chain_of_shapes


def _random_tenants(rng: random.Random, names: tuple[str, ...]) -> tuple[PlannedTenant, ...]:
    """Return the default tenant, one that stays in one region, and one that stays in some regions."""
    some = rng.sample(names, rng.randint(1, len(names) - 1))
    return (
        *DEFAULT_TENANTS,
        PlannedTenant(tenant_id="acme", allowed_regions=(names[0],)),
        PlannedTenant(tenant_id="globex", allowed_regions=tuple(some)),
    )


def _in_region(
    request: PlannedRequest, rng: random.Random, names: tuple[str, ...], tenants: tuple[PlannedTenant, ...]
) -> PlannedRequest:
    """Return the request with a region and a tenant, mostly one that the region may serve."""
    tenant = rng.randrange(1, len(tenants)) if rng.random() < RESIDENT_SHARE else 0
    allowed = tenants[tenant].allowed_regions
    region = rng.choice(names) if not allowed or rng.random() < AWAY_SHARE else rng.choice(allowed)
    return replace(request, tenant=tenant, region=names.index(region))


def _overload(rng: random.Random) -> list[PlannedRequest]:
    """Return requests that arrive in the first region at once and may leave it."""
    lengths = rng.sample(OVERLOAD_PROMPT_TOKENS, rng.randint(*OVERLOAD_REQUESTS))
    return [
        PlannedRequest(
            starts_at=rng.uniform(0.0, 0.02),
            prompt=tuple((each * 7 + 1) % 26 for each in range(length)),
            max_output_tokens=rng.randint(*OVERLOAD_OUTPUT_TOKENS),
            seed=rng.getrandbits(64),
            ignore_eos=True,
            uses_session=rng.random() < 0.4,
            logprobs=rng.random() < 0.2,
            cancel_after_tokens=rng.randint(0, 8)
            if place >= FULLY_READ_REQUESTS and rng.random() < CANCEL_SHARE
            else None,
        )
        for place, length in enumerate(lengths)
    ]


def _random_faults(plan: WorldPlan, rng: random.Random, *, is_overloaded: bool) -> tuple[PlannedFault, ...]:
    """Return faults of regions and links, and some of the plan's own. Frames cross the border of an overload only."""
    own = iter(plan.faults)

    def draw() -> PlannedFault:
        share = rng.random()
        if share < REGION_FAULT_SHARE:
            return _region_fault(rng, COMMON_BORDER_FAILPOINTS if is_overloaded else ())
        if is_overloaded and share < REGION_FAULT_SHARE + GUEST_FAULT_SHARE:
            return _guest_fault(rng)
        return next(own, None) or _region_fault(rng, ())

    return tuple(draw() for _ in range(rng.randint(1, MAX_FAULTS)))


def _region_fault(rng: random.Random, failpoints: Sequence[Failpoint]) -> PlannedFault:
    kind = rng.choices(list(REGION_FAULT_WEIGHTS), list(REGION_FAULT_WEIGHTS.values()))[0]
    return PlannedFault(
        kind=kind,
        duration_s=rng.uniform(*REGION_FAULT_DURATIONS_S[kind]),
        victim_tier="",
        victim_pick=rng.random(),
        at=rng.uniform(0.0, LOAD_PERIOD_S),
        failpoint=rng.choice((None, *failpoints)),
        frame_number=rng.choice((1, 1, 2, 3)),
        is_one_way=rng.random() < 0.5,
        added_delay_s=rng.uniform(*ADDED_DELAY_S),
    )


def _guest_fault(rng: random.Random) -> PlannedFault:
    """Return a fault of the edge that sends a frame to another region, or of the link to the peer."""
    kind = rng.choices(list(GUEST_FAULT_WEIGHTS), list(GUEST_FAULT_WEIGHTS.values()))[0]
    return PlannedFault(
        kind=kind,
        duration_s=rng.uniform(*FAULT_DURATIONS_S[kind]),
        victim_tier="edge",
        victim_pick=rng.random(),
        failpoint=rng.choice((*COMMON_BORDER_FAILPOINTS, *BORDER_FAILPOINTS)),
        frame_number=rng.choice((1, 1, 2, 3, 5)),
    )


def addresses_of_edges(shape: MeshShape, region: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the edges of one region, and those of the others, the next region first."""
    regions = shape.regions
    others = (*regions[region + 1 :], *regions[:region])
    return regions[region].addresses("edge"), tuple(chain.from_iterable(each.addresses("edge") for each in others))
