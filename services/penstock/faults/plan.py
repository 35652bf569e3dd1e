"""World plan: the mesh, the requests and the faults, all sampled from a seed before the world starts."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.faults.checks import oracle
from penstock.faults.failpoints import COMMON_FAILPOINTS, FAILPOINTS
from penstock.faults.grpc.network import Failpoint
from penstock.faults.planned_batch import PlannedBatch
from penstock.faults.world.tiers import MeshShape

LOAD_PERIOD_S = 0.5  # s; requests and timed faults start within it
FAULT_FREE_SHARE = 0.08  # share of worlds without a fault, in which no failure is allowed
MAX_FAULTS = 3  # a request survives as many lost runs as the edge's limit of attempts allows


class FaultKind(StrEnum):
    KILL = "kill"  # SIGKILL of a process; it starts again after `duration_s`
    TERM = "term"  # SIGTERM of a process; it starts again after it has ended
    CRASH = "crash"  # an engine crashes by itself
    FREEZE = "freeze"  # SIGSTOP of a process, and SIGCONT after `duration_s`
    RESET = "reset"  # one connection is lost
    PARTITION = "partition"  # no traffic between two processes for `duration_s`
    DISK_FULL = "disk_full"  # the disk of auth, or of the batch tier, is full for `duration_s`
    STORE_AWAY = "store_away"  # one or all processes of the batch tier cannot reach its database for `duration_s`
    REGION_KILL = "region_kill"  # SIGKILL of all processes of a region; they start again after `duration_s`
    CUT = "cut"  # no traffic between two regions for `duration_s`, in one direction or in both
    SLOW_LINK = "slow_link"  # messages between two regions take longer for `duration_s`


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
    FaultKind.DISK_FULL: (0.05, 5.0),
    FaultKind.STORE_AWAY: (0.05, 8.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault: at a time, or at the nth frame of a failpoint."""

    kind: FaultKind
    duration_s: float
    victim_tier: str  # at a failpoint: the peer of this tier, or the sender if neither peer is of this tier
    victim_pick: float  # in [0, 1): selects one of several candidates
    at: float = 0.0  # s from the first request
    failpoint: Failpoint | None = None  # None: the fault starts at `at`
    frame_number: int = 1  # the frame of the failpoint, counted from 1
    is_one_way: bool = False  # a fault of the link between two regions concerns one direction
    added_delay_s: float = 0.0  # by `SLOW_LINK`

    def __str__(self) -> str:
        when = f"at frame {self.frame_number} of {self.failpoint}" if self.failpoint else f"at {self.at:.4f} s"
        return f"{self.kind} {self.victim_tier} for {self.duration_s:.3f} s {when}"


class LimitScope(StrEnum):
    """What has the limits of a tenant, which sends all requests with one key and for one model."""

    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"  # without budgets


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTenant:
    """A tenant with one key. A limit of 0 means no limit."""

    tenant_id: str
    scope: LimitScope = LimitScope.TENANT
    concurrent_requests: int = 0
    tokens_per_minute: int = 0
    tokens_per_month: int = 0
    tokens_per_day: int = 0
    allowed_regions: tuple[str, ...] = ()  # empty: all

    @property
    def is_limited(self) -> bool:
        budgets = self.tokens_per_month or self.tokens_per_day
        return bool(self.concurrent_requests or self.tokens_per_minute or budgets)


DEFAULT_TENANTS = (PlannedTenant(tenant_id="default"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One client's request. Prompts of one world differ in length, by which charges are matched to requests."""

    starts_at: float  # s from the beginning of the load
    prompt: tuple[int, ...]
    max_output_tokens: int
    seed: int | None  # None: greedy decoding, and the edge chooses a seed
    ignore_eos: bool
    stops: tuple[str, ...] = ()
    cancel_after_tokens: int | None = None  # the client cancels after this many tokens; None: never
    cancel_after_s: float | None = None  # the client cancels after this time in s; None: never
    timeout_s: float | None = None  # deadline in s; None: no deadline
    uses_session: bool = False
    sends_text: bool = False
    priority: int = 2
    logprobs: bool = False
    stall_after_tokens: int | None = None  # the client stops reading after this many tokens; None: never
    stall_s: float = 0.0  # the client stops reading for this time in s
    crash_token_index: int | None = None  # the output token whose computation crashes every engine; None: no crash
    tenant: int = 0  # number of the tenant whose key the client has
    region: int = 0  # number of the region to whose edges the client connects first

    def prompt_for(self, version: int) -> tuple[int, ...]:
        """Return the prompt's ids for a version of the model: of its text, or as the client sends them."""
        return oracle.letter_ids(oracle.text_of(self.prompt), version) if self.sends_text else self.prompt

    @property
    def is_read_to_end(self) -> bool:
        """Whether the client reads until the end of the answer."""
        return self.cancel_after_tokens is None and self.cancel_after_s is None and self.timeout_s is None


class ResponseAction(StrEnum):
    """What a client does with its response, beside reading it."""

    NONE = "none"
    CANCEL = "cancel"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResponse:
    """A stored response of one client, which retrieves it by its id, wherever it is generated."""

    request: PlannedRequest  # its prompt has the turns before it
    input: str  # text of this turn
    is_background: bool
    is_streamed: bool  # created with `stream`; read as a stream in any case, unless it is answered as a whole
    edge: int = 0  # number of the edge that the client calls first
    leaves_after_events: int | None = None  # a stream in the background is left, and read on at another edge
    action: ResponseAction = ResponseAction.NONE
    acts_after_s: float = 0.0  # s from the begin of the call
    continuation: "PlannedResponse | None" = None  # sent with `previous_response_id` once this one has ended

    @property
    def expected(self) -> oracle.ExpectedAnswer:
        request = self.request
        assert request.seed is not None, "the client states a seed"
        return oracle.expected_answer(
            request.prompt, request.seed, request.max_output_tokens, ignore_eos=request.ignore_eos, stops=()
        )

    @property
    def turns(self) -> "tuple[PlannedResponse, ...]":
        return (self, *(self.continuation.turns if self.continuation else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTokenCount:
    """One CountTokens call, which needs auth and a model, and no worker."""

    starts_at: float  # s from the beginning of the load
    prompt: tuple[int, ...]
    has_rollout: bool = False
    tenant: int = 0  # number of the tenant whose key the client has

    @property
    def possible_ids(self) -> list[tuple[int, ...]]:
        """Return the ids of the prompt's text in each version of the model that the world serves."""
        versions = oracle.VERSIONS if self.has_rollout else (0,)
        return [oracle.letter_ids(oracle.text_of(self.prompt), version) for version in versions]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedClockStep:
    """A step of Unix time on the host of one process. It is no excuse: no promise depends on a clock."""

    at: float  # s from the first request
    tier: str
    pick: float  # in [0, 1): selects one of the tier's processes
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReplacement:
    """A worker is stopped, and its next process serves a version of the model."""

    at: float  # s from the first request
    worker: int  # number
    version: int
    is_killed: bool = False  # otherwise it is stopped by SIGTERM, and drains


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOverrides:
    """Faults that the command line adds to every world."""

    has_poison: bool = False  # one request of every world crashes engines
    has_rollout: bool = False  # workers of every world are replaced by workers of another version of the model
    max_freeze_s: float = 0.0  # s; above 0, one process of every world is frozen, for up to this time
    has_auth_replicas: bool = False  # several processes of auth share a database in every world
    has_responses: bool = False  # clients of every world store responses
    has_batches: bool = False  # clients of every world create batches
    has_regions: bool = False  # every world has several regions; no other override has an effect

    def __str__(self) -> str:
        """Format the overrides as options of `penstock faults`."""
        frozen = f" --longest-freeze {self.max_freeze_s:g}" if self.max_freeze_s else ""
        flags = {
            " --poison": self.has_poison,
            " --rollout": self.has_rollout,
            " --auth-replicas": self.has_auth_replicas,
            " --responses": self.has_responses,
            " --batches": self.has_batches,
            " --regions": self.has_regions,
        }
        return "".join(flag for flag, is_set in flags.items() if is_set) + frozen


NO_OVERRIDES = PlanOverrides()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """A change that an operator makes at the home region, and repeats until it is made."""

    at: float  # s from the first request
    tenant: int  # number
    factor: float | None  # of all limits of the tenant, as they were planned; None: its key is revoked


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHome:
    """The region that keeps the tenants of all, whose limits the others share."""

    region: str
    changes: tuple[PlannedChange, ...] = ()
    offsets_s: tuple[float, ...] = ()  # by region: s by which the clock of its auth is ahead of the world's
    databases: tuple[bool, ...] = ()  # by region: whether processes of auth share a database, whose clock they follow


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBorder:
    """The link between the regions of a world."""

    trip_s: float  # s from one region to another, one way
    must_spill: bool = False  # the first region is overloaded without a fault, so that requests must leave it
    home: PlannedHome | None = None  # None: each region has tenants of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPlan:
    """All that a seed decides about one world."""

    seed: int
    shape: MeshShape
    requests: tuple[PlannedRequest, ...]
    token_counts: tuple[PlannedTokenCount, ...]
    faults: tuple[PlannedFault, ...]
    late_frame_share: float  # share of frames with a long network delay
    has_own_clocks: bool = False  # each host has a clock of its own, with an offset and a drift
    clock_steps: tuple[PlannedClockStep, ...] = ()
    replacements: tuple[PlannedReplacement, ...] = ()
    tenants: tuple[PlannedTenant, ...] = DEFAULT_TENANTS
    responses: tuple[PlannedResponse, ...] = ()
    batches: tuple[PlannedBatch, ...] = ()
    border: PlannedBorder | None = None  # None: the world has one region
    overrides: PlanOverrides = NO_OVERRIDES


def plan_for_seed(seed: int) -> WorldPlan:
    rng = random.Random(f"{seed} plan")
    shape = _random_shape(rng)
    requests = _random_requests(rng)
    late_frame_share = rng.choice((0.0, 0.02, 0.2))
    fault_count = 0 if rng.random() < FAULT_FREE_SHARE else rng.randint(1, MAX_FAULTS)
    return WorldPlan(
        seed=seed,
        shape=shape,
        requests=requests,
        token_counts=_random_token_counts(random.Random(f"{seed} counts")),
        faults=tuple(_random_fault(rng) for _ in range(fault_count)),
        late_frame_share=late_frame_share,
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
    """Return a stop string that the answer contains, or none; only a request with a seed has a known answer."""
    if seed is None or rng.random() < 0.5:
        return ()
    text = oracle.expected_answer(prompt, seed, tokens, ignore_eos=True, stops=()).text
    start = rng.randrange(max(1, len(text)))
    stop = text[start : start + rng.randint(1, 3)]
    return (stop,) if stop.isascii() and stop else ()


def _random_token_counts(rng: random.Random) -> tuple[PlannedTokenCount, ...]:
    count = rng.choice((0, 0, 1, 2))
    return tuple(
        PlannedTokenCount(starts_at=rng.uniform(0.0, LOAD_PERIOD_S), prompt=(3,) * rng.randint(1, 20))
        for _ in range(count)
    )


def _random_fault(rng: random.Random) -> PlannedFault:
    kind = rng.choices(list(FAULT_WEIGHTS), list(FAULT_WEIGHTS.values()))[0]
    victim = rng.choices(list(TIER_WEIGHTS), list(TIER_WEIGHTS.values()))[0]
    if kind is FaultKind.CRASH:
        victim = "engine"
    elif victim == "engine" and kind not in (FaultKind.KILL, FaultKind.FREEZE):
        victim = "worker"
    candidates = COMMON_FAILPOINTS if rng.random() < 0.85 else FAILPOINTS
    is_timed = rng.random() >= 0.7 or kind is FaultKind.DISK_FULL or victim == "engine"
    failpoint = None if is_timed else rng.choice(candidates)
    return PlannedFault(
        kind=kind,
        duration_s=rng.uniform(*FAULT_DURATIONS_S[kind]),
        victim_tier=victim,
        victim_pick=rng.random(),
        at=rng.uniform(0.0, LOAD_PERIOD_S),
        failpoint=failpoint,
        frame_number=rng.choice((1, 1, 2, 3)),
    )
