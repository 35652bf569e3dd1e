"""What is peculiar to some worlds: a client that stops reading, a request that crashes engines, a long standstill."""

import random
from dataclasses import replace

from penstock.faults.plan import (
    FAULT_DURATIONS_S,
    LOAD_PERIOD_S,
    NO_OVERRIDES,
    TIER_WEIGHTS,
    FaultKind,
    PlannedFault,
    PlanOverrides,
    WorldPlan,
    plan_for_seed,
)

POISON_SHARE = 0.06  # of worlds, in which a request crashes engines
SLOW_READER_SHARE = 0.15  # of worlds, in which a client stops reading
LONG_ANSWER_TOKENS = 28  # does not fit the buffers of such a world
SHORT_ANSWER_TOKENS = 12  # fits them
CLIENT_BUFFER_BYTES = 72  # bytes that an edge of such a world keeps for one client


def plan_world(seed: int, overrides: PlanOverrides = NO_OVERRIDES) -> WorldPlan:
    planned = replace(plan_for_seed(seed), overrides=overrides)
    slow, poison = random.Random(f"{seed} slow"), random.Random(f"{seed} poison")
    if overrides.max_freeze_s:
        planned = with_freeze(planned, random.Random(f"{seed} freeze"), overrides.max_freeze_s)
    if poison.random() < POISON_SHARE or overrides.has_poison:
        return with_poison(planned, poison)
    return with_slow_reader(planned, slow) if slow.random() < SLOW_READER_SHARE else planned


def with_slow_reader(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Have one of the clients stop reading in the middle of its answer, and edges keep little for it.

    The answers of the others are so short that they cannot fall that far behind.
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
    """Have one of the requests crash engines, by its prompt or later; its client stays to hear of it."""
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


def with_freeze(plan: WorldPlan, rng: random.Random, longest: float) -> WorldPlan:
    """Have all that stands still do so for longer than it would otherwise, and something stand still at all."""
    faults = plan.faults
    if not any(fault.kind is FaultKind.FREEZE for fault in faults):
        victim = rng.choices(list(TIER_WEIGHTS), list(TIER_WEIGHTS.values()))[0]
        at, pick = rng.uniform(0.0, LOAD_PERIOD_S), rng.random()
        faults = (
            PlannedFault(kind=FaultKind.FREEZE, duration_s=0.0, victim_tier=victim, victim_pick=pick, at=at),
            *faults[1:],
        )
    _, shortest = FAULT_DURATIONS_S[FaultKind.FREEZE]
    lasting = (
        replace(fault, duration_s=rng.uniform(shortest, longest)) if fault.kind is FaultKind.FREEZE else fault
        for fault in faults
    )
    return replace(plan, faults=tuple(lasting))
