"""What is simulated, as values; `reading` makes them from a file. Times are in s, sizes in tokens or blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.simulator.traffic.demand import Demand
from penstock.v1.inference_pb2 import Priority
from penstock.worker.engine.batching.policy import ContinuousBatching
from penstock.worker.engine.simulated.step_time import StepTimeModel

PRIORITIES = {
    "interactive": int(Priority.PRIORITY_INTERACTIVE),
    "standard": int(Priority.PRIORITY_STANDARD),
    "batch": int(Priority.PRIORITY_BATCH),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKind:
    """`count` workers alike. The defaults are the reference model that the baselines were measured with."""

    count: int = 1
    zone: str = ""  # empty: unknown
    slots: int = 256
    kv_blocks: int = 7_500
    block_size: int = 16
    context_length: int = 131_072
    batching: ContinuousBatching = field(default_factory=ContinuousBatching)
    step_time: StepTimeModel = field(default_factory=StepTimeModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBehavior:
    """How a tenant's clients behave."""

    patience: float = 0.0  # s without a first token after which one leaves; 0: stays
    leave_share: float = 0.0  # of clients that leave at a random moment of `leave_within`, whatever comes
    leave_within: float = 5.0
    deadline: float = 0.0  # s for the whole answer, told to the mesh; 0: none
    retries: int = 0  # after a refusal
    backoff: float = 0.5  # s before the first retry, doubled for each further one; Retry-After where that is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTenant:
    name: str
    demand: Demand
    priority: int = PRIORITIES["standard"]
    weight: float = 1.0
    zone: str = ""  # of the edges that it comes to
    has_shared_prefixes: bool = False  # its prompts have beginnings in common
    over_declare: float = 1.0  # max_output_tokens as a multiple of what the answer comes to
    declare_noise: float = 0.0  # of that multiple, which is off by up to this share of it either way
    client: ClientBehavior = ClientBehavior()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    shards: int = 1
    policy: str = "penstock"
    max_depth: int = 100_000
    max_tokens: int = 2_000_000_000
    policy_options: dict[str, float] = field(default_factory=dict)
    exempt_tickets: frozenset[str] = frozenset()  # tickets that no promise is asked for: what would have come of them


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    count: int = 1
    look_ahead: int = 1
    lease_ttl: float = 5.0
    express_slot_share: float = 1 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoss:
    """A worker dies, and comes back empty after a while."""

    worker: int
    lost_at: float
    returns_after: float = 0.0  # s; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTargets:
    """The SLO of every request."""

    ttft: float = 1.0
    tbt: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    tenants: Sequence[SimTenant]
    workers: Sequence[WorkerKind] = (WorkerKind(),)
    queues: QueueSettings = QueueSettings()
    schedulers: SchedulerSettings = SchedulerSettings()
    losses: Sequence[WorkerLoss] = ()
    targets: SloTargets = SloTargets()
    duration: float = 60.0  # in which requests arrive
    warm_up: float = 0.0  # at its beginning; requests of it are served and not counted
    drain: float = 60.0  # after it, for what is under way
    seed: int = 0
    load: float = 1.0  # multiplies every arrival rate
    load_sweep: Sequence[float] = ()  # multiples of the knee that unbounded FIFO has here
    link_delay: float = 0.0005  # each way between two processes
    loss_detection_delay: float = 1.0  # until scheduler and edges notice a dead worker
    engine: str = "fast"  # or exact: the worker's own batch, token by token
    sample_every: float = 0.25  # of depths and service

    @property
    def worker_count(self) -> int:
        return sum(kind.count for kind in self.workers)

    @property
    def has_shared_prefixes(self) -> bool:
        """Tell whether workers keep beginnings of prompts, and edges name them."""
        return any(tenant.has_shared_prefixes for tenant in self.tenants)

    @property
    def engine_kind(self) -> str:
        """Return the engine that is taken: which block holds what, only the batch itself can say."""
        return "exact" if self.has_shared_prefixes else self.engine
