"""Stored responses of a world: sampled from its seed, with faults that concern them."""

import random
from collections.abc import Iterator
from dataclasses import replace

from penstock.faults.checks import oracle
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.plan import (
    FAULT_DURATIONS_S,
    LOAD_PERIOD_S,
    FaultKind,
    PlannedFault,
    PlannedRequest,
    PlannedResponse,
    ResponseAction,
    WorldPlan,
)

MAX_RESPONSES = 3  # chains of responses in one world
PROMPT_TOKENS = range(3, 36)  # of a first turn; lengths that no other request of the world has
SECOND_TURN_TOKENS = 72  # of the first continuation's prompt; further ones are longer by 1
MIN_KV_BLOCKS = 48  # so that a second turn fits an engine
RESPONSE_FAULTS_SHARE = 0.7  # share of these worlds with faults in which one strikes an edge or its store
_KEEP = "penstock.mesh.v1.ResponseStoreService/Keep"
RESPONSE_FAILPOINTS = (
    Failpoint(_KEEP, TO_SERVER, "call"),
    Failpoint(_KEEP, TO_CLIENT, "result"),
    Failpoint("penstock.mesh.v1.WorkerService/Execute", TO_CLIENT, "step"),
    Failpoint("penstock.mesh.v1.AdmissionService/Admit", TO_SERVER, "settle"),
)
RESPONSE_FAULT_WEIGHTS = {
    FaultKind.KILL: 4,
    FaultKind.TERM: 2,
    FaultKind.FREEZE: 4,
    FaultKind.RESET: 1,
    FaultKind.PARTITION: 3,
    FaultKind.DISK_FULL: 1,
}
VICTIM_WEIGHTS = {"edge": 5, "auth": 1}
MAX_FREEZE_S = 8.0  # s; longer than a lease


def with_responses(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Let some clients store responses; a fault may strike the edges that generate them, or their store."""
    used = {len(each.prompt) for each in plan.requests}
    lengths = rng.sample([each for each in PROMPT_TOKENS if each not in used], rng.randint(1, MAX_RESPONSES))
    edges = rng.choice((1, 2, 2, 2, 3))
    tenants = [number for number, each in enumerate(plan.tenants) if not each.is_limited]
    responses = tuple(
        _random_response(rng, length, SECOND_TURN_TOKENS + number, rng.choice(tenants), edges)
        for number, length in enumerate(lengths)
    )
    faults = plan.faults
    if faults and not plan.overrides.max_freeze_s and rng.random() < RESPONSE_FAULTS_SHARE:
        faults = (*faults[:-1], _random_fault(rng))
    shape = replace(plan.shape, has_responses=True, edges=edges, kv_blocks=max(plan.shape.kv_blocks, MIN_KV_BLOCKS))
    return replace(plan, shape=shape, responses=responses, faults=faults)


def _random_fault(rng: random.Random) -> PlannedFault:
    kind = rng.choices(list(RESPONSE_FAULT_WEIGHTS), list(RESPONSE_FAULT_WEIGHTS.values()))[0]
    shortest, longest = FAULT_DURATIONS_S[kind]
    return PlannedFault(
        kind=kind,
        duration_s=rng.uniform(shortest, MAX_FREEZE_S if kind is FaultKind.FREEZE else longest),
        victim_tier=rng.choices(list(VICTIM_WEIGHTS), list(VICTIM_WEIGHTS.values()))[0],
        victim_pick=rng.random(),
        at=rng.uniform(0.0, 2 * LOAD_PERIOD_S),
        failpoint=None if kind is FaultKind.DISK_FULL else rng.choice((None, *RESPONSE_FAILPOINTS)),
        frame_number=rng.choice((1, 2, 3, 5, 8)),
    )


def _random_response(
    rng: random.Random, prompt_tokens: int, second_turn_tokens: int, tenant: int, edges: int
) -> PlannedResponse:
    variant = rng.choice((1, 3, 5))
    prompt = tuple((place * 7 + variant) % oracle.LETTERS for place in range(prompt_tokens))
    is_background, action, acts = rng.random() < 0.6, rng.random(), rng.random()
    first = PlannedResponse(
        request=_random_request(rng, prompt, tenant),
        input=oracle.text_of(prompt),
        is_background=is_background,
        is_streamed=rng.random() < 0.6,
        edge=rng.randrange(edges),
        leaves_after_events=rng.randint(1, 12) if is_background and rng.random() < 0.5 else None,
        action=_action(action),
        acts_after_s=rng.choice((0.0, 0.05, 0.3, 2.0)) + 0.1 * acts,
    )
    if first.action is not ResponseAction.NONE or rng.random() < 0.5:
        return first
    return replace(first, continuation=next(_continuations(rng, first, second_turn_tokens), None))


def _action(draw: float) -> ResponseAction:
    if draw < 0.2:
        return ResponseAction.CANCEL
    return ResponseAction.DELETE if draw < 0.4 else ResponseAction.NONE


def _random_request(rng: random.Random, prompt: tuple[int, ...], tenant: int) -> PlannedRequest:
    return PlannedRequest(
        starts_at=rng.uniform(0.0, LOAD_PERIOD_S),
        prompt=prompt,
        max_output_tokens=rng.randint(1, 24),
        seed=rng.getrandbits(63),
        ignore_eos=rng.random() < 0.6,
        tenant=tenant,
    )


def _continuations(rng: random.Random, first: PlannedResponse, tokens: int) -> Iterator[PlannedResponse]:
    """Yield a turn after `first`, with a prompt of `tokens`; none if the model has no tokens for the first answer."""
    answer = first.expected.text
    if not all(each == " " or each in oracle.PIECES for each in answer):
        return
    known = (*first.request.prompt, *(oracle.PIECES.index("Ġ" if each == " " else each) for each in answer))
    added = tuple(place % oracle.LETTERS for place in range(tokens - len(known)))
    yield PlannedResponse(
        request=_random_request(rng, (*known, *added), first.request.tenant),
        input=oracle.text_of(added),
        is_background=rng.random() < 0.3,
        is_streamed=rng.random() < 0.5,
        edge=first.edge + 1,
    )
