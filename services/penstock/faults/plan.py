"""What a seed decides before anything runs: the mesh, what is asked of it, and what goes wrong."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.faults.checks import oracle
from penstock.faults.failpoints import COMMON_FAILPOINTS, FAILPOINTS
from penstock.faults.grpc.network import Failpoint
from penstock.faults.world.tiers import MeshShape

LOAD_PERIOD_S = 0.5  # s in which requests come, and faults as well
FAULT_FREE_SHARE = 0.08  # of worlds, in which nothing goes wrong, and nobody is excused
MAX_FAULTS = 3  # a request survives as many lost runs as the edges' bound on attempts lets it


class FaultKind(StrEnum):
    KILL = "kill"  # and start again after a while
    TERM = "term"  # the same, but asked to
    CRASH = "crash"  # of an engine, by its own fault
    FREEZE = "freeze"  # and go on after a while
    RESET = "cut"  # one connection
    PARTITION = "hole"  # let nothing through between two processes for a while
    DISK_FULL = "disk"  # full for a while


FAULT_WEIGHTS = {
    FaultKind.KILL: 5,
    FaultKind.TERM: 2,
    FaultKind.CRASH: 0.7,
    FaultKind.FREEZE: 3,
    FaultKind.RESET: 3,
    FaultKind.PARTITION: 2,
    FaultKind.DISK_FULL: 0.5,
}
TIER_WEIGHTS = {"edge": 3, "auth": 2, "queue": 3, "scheduler": 3, "worker": 3, "engine": 2}
FAULT_DURATIONS_S = {
    FaultKind.KILL: (0.01, 1.5),
    FaultKind.TERM: (0.01, 0.5),
    FaultKind.CRASH: (0.0, 0.0),
    FaultKind.FREEZE: (0.05, 5.0),
    FaultKind.RESET: (0.0, 0.0),
    FaultKind.PARTITION: (0.05, 4.0),
    FaultKind.DISK_FULL: (0.05, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One thing that goes wrong: at a moment, or with the nth frame of a kind that leaves its sender."""

    kind: FaultKind
    duration_s: float  # how long it lasts
    victim_tier: str  # a tier; at a point the peer that is of this tier, or else the sender
    victim_pick: float  # which of several, in [0, 1)
    at: float = 0.0  # s from the first request
    failpoint: Failpoint | None = None
    frame_number: int = 1

    def __str__(self) -> str:
        when = f"at frame {self.frame_number} of {self.failpoint}" if self.failpoint else f"at {self.at:.4f} s"
        return f"{self.kind} {self.victim_tier} for {self.duration_s:.3f} s {when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One client's request. Prompts of one world differ in length, which is how its charges are told apart."""

    starts_at: float  # s from the beginning of the load
    prompt: tuple[int, ...]
    max_output_tokens: int
    seed: int | None  # None: greedy, and the edge draws one
    ignore_eos: bool
    stops: tuple[str, ...] = ()
    cancel_after_tokens: int | None = None  # tokens, after which the client leaves
    cancel_after_s: float | None = None  # s
    timeout_s: float | None = None  # s
    uses_session: bool = False
    sends_text: bool = False
    priority: int = 2
    logprobs: bool = False
    stall_after_tokens: int | None = None  # tokens, after which the client does not read for a while
    stall_s: float = 0.0  # s
    crash_token_index: int | None = None  # the token that no engine computes and lives

    @property
    def is_read_to_end(self) -> bool:
        """Whether its client stays for the end."""
        return self.cancel_after_tokens is None and self.cancel_after_s is None and self.timeout_s is None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTokenCount:
    """A question for the size of a text, which needs to know who asks and the model, and no worker."""

    starts_at: float  # s from the beginning of the load
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOverrides:
    """What somebody wants of every world beside what its seed says."""

    has_poison: bool = False  # a request crashes engines
    max_freeze_s: float = 0.0  # s; above 0 a process stands still, for longer than it would otherwise and up to this

    def __str__(self) -> str:
        """As options of the command that makes such worlds."""
        frozen = f" --longest-freeze {self.max_freeze_s:g}" if self.max_freeze_s else ""
        return f"{' --poison' if self.has_poison else ''}{frozen}"


NO_OVERRIDES = PlanOverrides()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    seed: int
    shape: MeshShape
    requests: tuple[PlannedRequest, ...]
    token_counts: tuple[PlannedTokenCount, ...]
    faults: tuple[PlannedFault, ...]
    late_frame_share: float  # share of frames that come late
    overrides: PlanOverrides = NO_OVERRIDES


def plan_for_seed(seed: int) -> WorldPlan:
    draw = random.Random(f"{seed} plan")
    shape = _random_shape(draw)
    asks = _random_requests(draw)
    roughness = draw.choice((0.0, 0.02, 0.2))
    count = 0 if draw.random() < FAULT_FREE_SHARE else draw.randint(1, MAX_FAULTS)
    broken = tuple(_random_fault(draw) for _ in range(count))
    counts = _random_token_counts(random.Random(f"{seed} counts"))
    return WorldPlan(
        seed=seed, shape=shape, requests=asks, token_counts=counts, faults=broken, late_frame_share=roughness
    )


def _random_shape(rng: random.Random) -> MeshShape:
    return MeshShape(
        edges=rng.choice((1, 2)),
        queues=rng.choice((1, 2)),
        schedulers=rng.choice((1, 2)),
        workers=rng.choice((1, 2, 2, 3)),
        slots=rng.choice((1, 2, 4)),
        kv_blocks=rng.choice((16, 24, 48)),
        block_size=rng.choice((4, 8)),
        token_budget=rng.choice((8, 24, 64)),
    )


def _random_requests(rng: random.Random) -> tuple[PlannedRequest, ...]:
    lengths = rng.sample(range(3, 36), rng.randint(2, 6))
    return tuple(_random_request(rng, length) for length in lengths)


def _random_request(rng: random.Random, prompt_tokens: int) -> PlannedRequest:
    variant, tokens = rng.choice((1, 1, 5)), rng.randint(1, 24)
    prompt = tuple((place * 7 + variant) % 26 for place in range(prompt_tokens))
    seed = rng.getrandbits(64) if rng.random() < 0.5 else None
    ignore_eos = rng.random() < 0.6
    ending = rng.random()
    return PlannedRequest(
        starts_at=rng.uniform(0.0, LOAD_PERIOD_S),
        prompt=prompt,
        max_output_tokens=tokens,
        seed=seed,
        ignore_eos=ignore_eos,
        stops=_random_stops(rng, prompt, seed, tokens),
        cancel_after_tokens=rng.randint(0, tokens) if ending < 0.12 else None,
        cancel_after_s=rng.uniform(0.0, rng.choice((0.005, 0.4))) if 0.12 <= ending < 0.24 else None,
        timeout_s=rng.uniform(0.01, 0.6) if 0.24 <= ending < 0.3 else None,
        uses_session=rng.random() < 0.4,
        sends_text=rng.random() < 0.3,
        priority=rng.choice((1, 2, 3)),
        logprobs=rng.random() < 0.2,
    )


def _random_stops(rng: random.Random, prompt: Sequence[int], seed: int | None, tokens: int) -> tuple[str, ...]:
    """A string that the answer will come to, half of the time; it takes a known seed to know one."""
    if seed is None or rng.random() < 0.5:
        return ()
    text = oracle.expected_answer(prompt, seed, tokens, ignore_eos=True, stops=()).text
    start = rng.randrange(max(1, len(text)))
    found = text[start : start + rng.randint(1, 3)]
    return (found,) if found.isascii() and found else ()


def _random_token_counts(rng: random.Random) -> tuple[PlannedTokenCount, ...]:
    how_many = rng.choice((0, 0, 1, 2))
    return tuple(
        PlannedTokenCount(starts_at=rng.uniform(0.0, LOAD_PERIOD_S), prompt=(3,) * rng.randint(1, 20))
        for _ in range(how_many)
    )


def _random_fault(rng: random.Random) -> PlannedFault:
    act = rng.choices(list(FAULT_WEIGHTS), list(FAULT_WEIGHTS.values()))[0]
    victim = rng.choices(list(TIER_WEIGHTS), list(TIER_WEIGHTS.values()))[0]
    if act is FaultKind.CRASH:
        victim = "engine"
    elif victim == "engine" and act not in (FaultKind.KILL, FaultKind.FREEZE):
        victim = "worker"
    places = COMMON_FAILPOINTS if rng.random() < 0.85 else FAILPOINTS
    point = rng.choice(places) if rng.random() < 0.7 and act is not FaultKind.DISK_FULL and victim != "engine" else None
    return PlannedFault(
        kind=act,
        duration_s=rng.uniform(*FAULT_DURATIONS_S[act]),
        victim_tier=victim,
        victim_pick=rng.random(),
        at=rng.uniform(0.0, LOAD_PERIOD_S),
        failpoint=point,
        frame_number=rng.choice((1, 1, 2, 3)),
    )
