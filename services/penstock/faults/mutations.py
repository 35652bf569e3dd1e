"""Changes to the plans of some worlds: clocks, slow readers, requests that crash engines, freezes, auth replicas."""

import random
from dataclasses import replace

from penstock.faults.batch_plans import with_batches
from penstock.faults.failpoints import PARTITION_FAILPOINTS
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.plan import (
    DEFAULT_TENANTS,
    FAULT_DURATIONS_S,
    LOAD_PERIOD_S,
    MAX_FAULTS,
    NO_OVERRIDES,
    TIER_WEIGHTS,
    FaultKind,
    PlannedClockStep,
    PlannedFault,
    PlannedReplacement,
    PlannedRequest,
    PlannedTenant,
    PlanOverrides,
    WorldPlan,
    plan_for_seed,
)
from penstock.faults.regions.home_plans import with_home
from penstock.faults.regions.plans import with_regions
from penstock.faults.response_plans import with_responses
from penstock.faults.world.tiers import TIERS

OWN_CLOCKS_SHARE = 0.7  # share of worlds in which each host has a clock of its own
MAX_CLOCK_STEPS = 3
CLOCK_STEP_S = 600.0  # s; the longest step in either direction
CLOCK_STEP_PERIOD_S = 2.0  # s; clocks step within it
ROLLOUT_PERIOD_S = 0.8  # s; the workers of a rollout are stopped within it
ROLLBACK_SHARE = 0.2  # share of rollouts of which the first worker returns to its version
POISON_SHARE = 0.06  # share of worlds in which one request crashes engines
SLOW_READER_SHARE = 0.15  # share of worlds in which one client stops reading
LONG_ANSWER_TOKENS = 28  # exceeds the client buffer of a world with a slow reader
SHORT_ANSWER_TOKENS = 12  # fits the client buffer
REPLICAS_SHARE = 0.5  # share of worlds in which several processes of auth share a database
AUTH_FAULT_SHARE = 0.6  # share of these worlds with faults in which at least one is auth's
AUTH_STORM_SHARE = 0.15  # share in which all faults are auth's, and strike while partitions move
AUTH_STORM_S = 2.5  # s; requests and faults of such a world start within it
AUTH_FAULT_WEIGHTS = {
    FaultKind.KILL: 3,
    FaultKind.TERM: 2,
    FaultKind.FREEZE: 4,
    FaultKind.RESET: 1,
    FaultKind.PARTITION: 1,
}
_ADMIT = "penstock.mesh.v1.AdmissionService/Admit"
AUTH_FAILPOINTS = (
    Failpoint(_ADMIT, TO_SERVER, "reserve"),
    Failpoint(_ADMIT, TO_SERVER, "settle"),
    Failpoint(_ADMIT, TO_CLIENT, "admitted"),
    Failpoint(_ADMIT, TO_CLIENT, "settled"),
    *PARTITION_FAILPOINTS,
)
OTHER_TENANTS = ("acme", "globex")  # of other partitions than the default tenant
TOKEN_LIMITS = (80, 200)  # range of tokens per minute or month; above each request
HOME_SHARE = 0.5  # share of worlds of several regions whose regions share limits
RESPONSES_SHARE = 0.1  # share of worlds in which clients store responses
CLIENT_BUFFER_BYTES = 72  # limit of unread bytes per client on an edge of a world with a slow reader


def plan_world(seed: int, overrides: PlanOverrides = NO_OVERRIDES) -> WorldPlan:
    plan = with_clocks(replace(plan_for_seed(seed), overrides=overrides), random.Random(f"{seed} clocks"))
    if overrides.has_regions:
        regions, homes = with_regions(plan, random.Random(f"{seed} regions plan")), random.Random(f"{seed} homes")
        return with_home(regions, homes) if homes.random() < HOME_SHARE else regions
    slow, poison = random.Random(f"{seed} slow"), random.Random(f"{seed} poison")
    if overrides.max_freeze_s:
        plan = with_freeze(plan, random.Random(f"{seed} freeze"), overrides.max_freeze_s)
    if overrides.has_rollout:
        plan = with_rollout(plan, random.Random(f"{seed} rollout"))
    if poison.random() < POISON_SHARE or overrides.has_poison:
        plan = with_poison(plan, poison)
    elif slow.random() < SLOW_READER_SHARE:
        plan = with_slow_reader(plan, slow)
    replicas = random.Random(f"{seed} replicas")
    if replicas.random() < REPLICAS_SHARE or overrides.has_auth_replicas:
        plan = with_auth_replicas(plan, replicas)
    responses = random.Random(f"{seed} responses plan")
    is_special = overrides.has_rollout or plan.shape.response_buffer_bytes == CLIENT_BUFFER_BYTES
    if overrides.has_responses or (responses.random() < RESPONSES_SHARE and not is_special):
        plan = with_responses(plan, responses)
    if overrides.has_batches:
        plan = with_batches(plan, random.Random(f"{seed} batches plan"))
    return plan


def with_auth_replicas(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Let several processes of auth share a database, with tenants of different partitions. Faults may be auth's."""
    tenants = _random_tenants(rng)
    unlimited = [number for number, each in enumerate(tenants) if not each.is_limited]

    def tenant_of(request: PlannedRequest) -> int:
        is_special = request.crash_token_index is not None or request.stall_after_tokens is not None
        return rng.choice(unlimited) if is_special else rng.randrange(len(tenants))

    requests = tuple(replace(each, tenant=tenant_of(each)) for each in plan.requests)
    faults = plan.faults
    if faults and not plan.overrides.max_freeze_s:
        strikes = rng.random()
        if strikes < AUTH_STORM_SHARE:
            faults = tuple(_random_auth_fault(rng, AUTH_STORM_S) for _ in range(MAX_FAULTS))
            requests = tuple(replace(each, starts_at=rng.uniform(0.0, AUTH_STORM_S)) for each in requests)
        elif strikes < AUTH_FAULT_SHARE:
            faults = (*faults[:-1], _random_auth_fault(rng, LOAD_PERIOD_S))
    return replace(
        plan,
        shape=replace(plan.shape, auths=rng.choice((2, 2, 3))),
        tenants=tenants,
        requests=requests,
        token_counts=tuple(replace(each, tenant=rng.randrange(len(tenants))) for each in plan.token_counts),
        faults=faults,
    )


def _random_tenants(rng: random.Random) -> tuple[PlannedTenant, ...]:
    """Return two or three tenants, of which one may have a limit. All worlds are within one month."""
    names = list(OTHER_TENANTS[: rng.choice((1, 2))])
    others = [PlannedTenant(tenant_id=name) for name in names]
    limit = rng.random()
    if limit < 0.25:
        others[-1] = replace(others[-1], concurrent_requests=rng.choice((1, 1, 2)))
    elif limit < 0.5:
        others[-1] = replace(others[-1], tokens_per_month=rng.randint(*TOKEN_LIMITS))
    elif limit < 0.75:
        others[-1] = replace(others[-1], tokens_per_minute=rng.randint(*TOKEN_LIMITS))
    return (*DEFAULT_TENANTS, *others)


def _random_auth_fault(rng: random.Random, period_s: float) -> PlannedFault:
    kind = rng.choices(list(AUTH_FAULT_WEIGHTS), list(AUTH_FAULT_WEIGHTS.values()))[0]
    return PlannedFault(
        kind=kind,
        duration_s=rng.uniform(*FAULT_DURATIONS_S[kind]),
        victim_tier="auth",
        victim_pick=rng.random(),
        at=rng.uniform(0.0, period_s),
        failpoint=rng.choice((None, *AUTH_FAILPOINTS)),
        frame_number=rng.choice((1, 1, 2, 3)),
    )


def with_clocks(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Give each host of most worlds a clock of its own, which may step."""
    if rng.random() >= OWN_CLOCKS_SHARE:
        return plan
    steps = tuple(
        PlannedClockStep(
            at=rng.uniform(0.0, CLOCK_STEP_PERIOD_S),
            tier=rng.choice(TIERS),
            pick=rng.random(),
            seconds=rng.choice((-CLOCK_STEP_S, CLOCK_STEP_S, rng.uniform(-1.0, 1.0), rng.uniform(-61.0, 61.0))),
        )
        for _ in range(rng.randint(0, MAX_CLOCK_STEPS))
    )
    return replace(plan, has_own_clocks=True, clock_steps=steps)


def with_rollout(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Replace half of the workers, or all, one after the other; sometimes roll the first one back.

    A killed worker counts as one of the faults, because a request survives a limited number of lost runs.
    """
    workers = list(range(plan.shape.workers))
    rng.shuffle(workers)
    replaced = workers[: rng.choice((-(-len(workers) // 2), len(workers)))]
    steps = [(worker, 1) for worker in replaced] + ([(replaced[0], 0)] if rng.random() < ROLLBACK_SHARE else [])
    times = sorted(rng.uniform(0.0, ROLLOUT_PERIOD_S) for _ in steps)
    killed = rng.choice((None, *replaced))
    replacements = tuple(
        PlannedReplacement(at=at, worker=worker, version=version, is_killed=worker == killed and version == 1)
        for at, (worker, version) in zip(times, steps, strict=True)
    )
    faults = plan.faults if killed is None else plan.faults[: MAX_FAULTS - 1]
    counts = tuple(replace(each, has_rollout=True) for each in plan.token_counts)
    return replace(plan, replacements=replacements, faults=faults, token_counts=counts)


def with_slow_reader(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Make one client stop reading in the middle of its answer, and give edges a small response buffer.

    The other answers are short enough to fit the buffer.
    """
    requests = [
        replace(request, max_output_tokens=min(request.max_output_tokens, SHORT_ANSWER_TOKENS))
        for request in plan.requests
    ]
    place = rng.randrange(len(requests))
    requests[place] = replace(
        requests[place],
        max_output_tokens=LONG_ANSWER_TOKENS,
        ignore_eos=True,
        stops=(),
        cancel_after_tokens=None,
        cancel_after_s=None,
        timeout_s=None,
        uses_session=False,
        stall_after_tokens=rng.randint(1, 4),
        stall_s=rng.choice((0.2, 2.0, 8.0)),
    )
    return replace(plan, requests=tuple(requests), shape=replace(plan.shape, response_buffer_bytes=CLIENT_BUFFER_BYTES))


def with_poison(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Make one request crash every engine, in its prefill or later; its client waits for the error."""
    requests = list(plan.requests)
    place = rng.randrange(len(requests))
    crash_token_index = rng.choice((0, 0, 3))
    requests[place] = replace(
        requests[place],
        max_output_tokens=max(requests[place].max_output_tokens, crash_token_index + 1),
        ignore_eos=True,
        stops=(),
        cancel_after_tokens=None,
        cancel_after_s=None,
        timeout_s=None,
        crash_token_index=crash_token_index,
    )
    return replace(plan, requests=tuple(requests))


def with_freeze(plan: WorldPlan, rng: random.Random, max_freeze_s: float) -> WorldPlan:
    """Extend every freeze up to `max_freeze_s` seconds, and add a freeze if the plan has none."""
    faults = plan.faults
    if not any(fault.kind is FaultKind.FREEZE for fault in faults):
        victim = rng.choices(list(TIER_WEIGHTS), list(TIER_WEIGHTS.values()))[0]
        at, pick = rng.uniform(0.0, LOAD_PERIOD_S), rng.random()
        faults = (
            PlannedFault(kind=FaultKind.FREEZE, duration_s=0.0, victim_tier=victim, victim_pick=pick, at=at),
            *faults[1:],
        )
    _, min_freeze_s = FAULT_DURATIONS_S[FaultKind.FREEZE]
    extended = (
        replace(fault, duration_s=rng.uniform(min_freeze_s, max_freeze_s)) if fault.kind is FaultKind.FREEZE else fault
        for fault in faults
    )
    return replace(plan, faults=tuple(extended))
