"""Batches of a world: sampled from its seed, with faults that concern the batch tier."""

import random
from dataclasses import replace

from penstock.faults.checks import oracle
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.faults.plan import FAULT_DURATIONS_S, FaultKind, PlannedFault, WorldPlan
from penstock.faults.planned_batch import CHAT, COMPLETIONS, RESPONSES, LineDefect, PlannedBatch, PlannedLine

REPLICAS = 2  # of the batch tier
MAX_BATCHES = 2
LINES, MANY_LINES = range(3, 9), range(20, 31)  # of one batch
LONG_SHARE = 0.12  # share of worlds with one batch of many lines, of which most wait in the batch tier
FIRST_LENGTH = 76  # tokens of the first line's prompt; further ones are longer by 1, and no other request is as long
MIN_KV_BLOCKS = 48  # so that the prompts and answers of two lines fit an engine
BAD_SHARE = 0.25  # share of lines that cannot be answered
CRASHING_SHARE = 0.08  # share of worlds of which one line crashes engines
DUPLICATE_SHARE = 0.3  # share of batches in which two lines have one custom_id
BATCH_PERIOD_S = 3.0  # s; faults of the batch tier start within it
BATCH_FAULTS_SHARE = (
    0.8  # share of these worlds with faults in which one strikes the batch tier, its links or its store
)
_RUN, _CALL = "penstock.mesh.v1.LineService/Run", "penstock.mesh.v1.BatchService/Call"
BATCH_FAILPOINTS = (
    Failpoint(_RUN, TO_SERVER, "start"),
    Failpoint(_RUN, TO_SERVER, "stop"),
    Failpoint(_RUN, TO_CLIENT, "running"),
    Failpoint(_RUN, TO_CLIENT, "ended"),
    Failpoint(_CALL, TO_SERVER, ""),
    Failpoint(_CALL, TO_CLIENT, ""),
)
OTHER_FAILPOINTS = (
    Failpoint("penstock.mesh.v1.WorkerService/Execute", TO_CLIENT, "step"),
    Failpoint("penstock.mesh.v1.AdmissionService/Admit", TO_SERVER, "settle"),
    Failpoint("penstock.mesh.v1.AdmissionService/Admit", TO_CLIENT, "settled"),
)
BATCH_FAULT_WEIGHTS = {
    FaultKind.KILL: 4,
    FaultKind.TERM: 2,
    FaultKind.FREEZE: 4,
    FaultKind.RESET: 1,
    FaultKind.PARTITION: 2,
    FaultKind.DISK_FULL: 1,
    FaultKind.STORE_AWAY: 3,
}
VICTIM_WEIGHTS = {"batch": 5, "edge": 3, "auth": 1}
MAX_FREEZE_S = 8.0  # s; longer than a lease
_EASY_DEFECTS = tuple(each for each in LineDefect if each not in (LineDefect.NONE, LineDefect.CRASHING))


def with_batches(plan: WorldPlan, rng: random.Random) -> WorldPlan:
    """Let clients create batches; a fault may strike the tier that keeps them."""
    tenants = [number for number, each in enumerate(plan.tenants) if not each.is_limited]
    batches: list[PlannedBatch] = []
    length = FIRST_LENGTH
    counts = (
        [rng.choice(MANY_LINES)] if rng.random() < LONG_SHARE else rng.choices(LINES, k=rng.randint(1, MAX_BATCHES))
    )
    for number, lines in enumerate(counts):
        batches.append(_random_batch(rng, f"batch{number}", length, lines, rng.choice(tenants)))
        length += lines
    has_poison = any(each.crash_token_index is not None for each in plan.requests)
    if rng.random() < CRASHING_SHARE and not has_poison:
        batches[0] = _with_crashing_line(batches[0], rng)
    faults = plan.faults
    if faults and not plan.overrides.max_freeze_s and rng.random() < BATCH_FAULTS_SHARE:
        faults = (*faults[:-1], _random_fault(rng))
    shape = replace(plan.shape, batches=REPLICAS, edges=2, kv_blocks=max(plan.shape.kv_blocks, MIN_KV_BLOCKS))
    return replace(plan, shape=shape, batches=tuple(batches), faults=faults)


def _random_fault(rng: random.Random) -> PlannedFault:
    kind = rng.choices(list(BATCH_FAULT_WEIGHTS), list(BATCH_FAULT_WEIGHTS.values()))[0]
    shortest, longest = FAULT_DURATIONS_S[kind]
    is_of_store = kind in (FaultKind.DISK_FULL, FaultKind.STORE_AWAY)
    victim = rng.choices(list(VICTIM_WEIGHTS), list(VICTIM_WEIGHTS.values()))[0]
    return PlannedFault(
        kind=kind,
        duration_s=rng.uniform(shortest, MAX_FREEZE_S if kind is FaultKind.FREEZE else longest),
        victim_tier="batch" if is_of_store else victim,
        victim_pick=rng.random(),
        at=rng.uniform(0.0, BATCH_PERIOD_S),
        failpoint=rng.choice((None, *BATCH_FAILPOINTS, *OTHER_FAILPOINTS)),
        frame_number=rng.choice((1, 2, 3, 5, 8)),
    )


def _random_batch(rng: random.Random, name: str, first_length: int, count: int, tenant: int) -> PlannedBatch:
    lines = [_random_line(rng, number, first_length + number) for number in range(count)]
    if rng.random() < DUPLICATE_SHARE:
        first, second = sorted(rng.sample(range(len(lines)), 2))
        lines[second] = replace(lines[second], custom_id=lines[first].custom_id)
    ends = rng.random()
    return PlannedBatch(
        name=name,
        starts_at=rng.uniform(0.0, 0.5),
        endpoint=rng.choice((CHAT, COMPLETIONS, RESPONSES)),
        lines=tuple(lines),
        blank_before=frozenset(number for number in range(len(lines)) if rng.random() < 0.1),
        edge=rng.randrange(2),
        tenant=tenant,
        window_s=rng.randint(1, 5) if ends < 0.15 else None,
        cancels_after_s=rng.uniform(0.0, rng.choice((0.5, 3.0))) if 0.15 <= ends < 0.45 else None,
    )


def _random_line(rng: random.Random, number: int, length: int) -> PlannedLine:
    variant = rng.choice((1, 3, 5))
    prompt = [(place * 7 + variant + number) % oracle.LETTERS for place in range(length)]
    return PlannedLine(
        custom_id=f"line-{number}",
        text=oracle.text_of(prompt),
        max_output_tokens=rng.randint(1, 24),
        seed=rng.getrandbits(63) if rng.random() < 0.4 else None,
        ignore_eos=rng.random() < 0.6,
        defect=rng.choice(_EASY_DEFECTS) if rng.random() < BAD_SHARE else LineDefect.NONE,
    )


def _with_crashing_line(batch: PlannedBatch, rng: random.Random) -> PlannedBatch:
    """Let one line crash every engine, in its prefill or later."""
    place, index = rng.randrange(len(batch.lines)), rng.choice((0, 0, 3))
    line = replace(
        batch.lines[place],
        defect=LineDefect.CRASHING,
        max_output_tokens=max(batch.lines[place].max_output_tokens, index + 1),
        ignore_eos=True,
        crash_token_index=index,
    )
    return replace(batch, lines=(*batch.lines[:place], line, *batch.lines[place + 1 :]))
