"""Scenario: all settings of a simulation, as values. Times are in s, sizes in tokens or blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.simulator.autoscaling.clairvoyant import PlannedWorker
from penstock.simulator.autoscaling.keda import KedaSettings
from penstock.simulator.traffic.backlog import Backlog
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
    """A kind of worker. The defaults are the reference model, with which the baselines were measured."""

    count: int = 1  # workers of this kind
    zone: str = ""  # empty: no zone
    slots: int = 256
    kv_blocks: int = 7_500
    block_size: int = 16  # tokens
    context_length: int = 131_072  # tokens
    batching: ContinuousBatching = field(default_factory=ContinuousBatching)
    step_time: StepTimeModel = field(default_factory=StepTimeModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBehavior:
    """How a tenant's clients behave."""

    patience: float = 0.0  # s; a client without a first token cancels after it; 0: never
    leave_share: float = 0.0  # share of clients that cancel at a random time, independently of their answer
    leave_within: float = 5.0  # s; the random time is below it
    deadline: float = 0.0  # s for the whole answer, sent with the request; 0: no deadline
    retries: int = 0  # retries after a rejection or after `patience`
    backoff: float = 0.5  # s before the first retry, doubled for each further one; at least the suggested delay


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTenant:
    """One tenant, its requests over time and its clients."""

    name: str
    demand: Demand
    priority: int = PRIORITIES["standard"]
    weight: float = 1.0
    zone: str = ""  # zone of its edges; empty: no zone
    has_shared_prefixes: bool = False  # its prompts have prefixes in common
    over_declare: float = 1.0  # max_output_tokens as a multiple of the tokens that the answer has
    declare_noise: float = 0.0  # largest relative error of that multiple, in [0, 1]
    client: ClientBehavior = ClientBehavior()

    @property
    def backlog(self) -> Backlog | None:
        """The batch of a batch tenant, whose lines the batch replica starts. None: its clients send requests."""
        return self.demand if isinstance(self.demand, Backlog) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The queue: its shards, its policy and its limits."""

    shards: int = 1
    policy: str = "penstock"
    max_depth: int = 100_000  # tickets per shard
    max_tokens: int = 2_000_000_000  # tokens of waiting tickets per shard
    policy_options: dict[str, float] = field(default_factory=dict)
    exempt_tickets: frozenset[str] = frozenset()  # tickets that are admitted without a check of their TTFT target


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The schedulers."""

    count: int = 1
    look_ahead: int = 1  # leases per worker beyond its slots
    lease_ttl: float = 5.0  # s
    express_slot_share: float = 1 / 16  # share of slots that are reserved for express tickets


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoss:
    """The death of a worker, and its restart with an empty engine."""

    worker: int  # number of the worker, from 0
    lost_at: float  # s
    returns_after: float = 0.0  # s; 0: the worker does not return


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleSettings:
    """Workers that start and stop while the scenario runs, in place of a fixed number. They begin with none."""

    load_time: float  # s from the start of a worker until it attaches
    drain_grace: float = 300.0  # s; runs that are left after it are cut
    keda: KedaSettings = field(default_factory=KedaSettings)
    plan: Sequence[PlannedWorker] = ()  # the workers of a clairvoyant; empty: KEDA decides
    silences: Sequence[tuple[float, float]] = ()  # s; begin and end of times in which no shard reports its demand


@dataclass(frozen=True, slots=True, kw_only=True)
class RollSettings:
    """The replacement of all workers while the scenario runs, without spare capacity."""

    begins_at: float  # s
    max_unavailable: int  # workers that drain or load at the same time
    load_time: float  # s from the start of a worker until it attaches
    drain_grace: float = 300.0  # s; runs that are left after it are cut


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTargets:
    """The SLO of every request."""

    ttft: float = 1.0  # s to the first token
    tbt: float = 0.1  # s between two tokens, on average


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One mesh and the load that is offered to it."""

    name: str
    tenants: Sequence[SimTenant]
    workers: Sequence[WorkerKind] = (WorkerKind(),)
    queues: QueueSettings = QueueSettings()
    schedulers: SchedulerSettings = SchedulerSettings()
    losses: Sequence[WorkerLoss] = ()
    autoscale: AutoscaleSettings | None = None  # with it, the first of `workers` is the kind of each worker
    roll: RollSettings | None = None  # of `worker_count` workers of the first kind
    targets: SloTargets = SloTargets()
    duration: float = 60.0  # s in which requests arrive
    warm_up: float = 0.0  # s at the start; requests of this time are served and not counted
    drain: float = 60.0  # s after `duration` for active requests
    seed: int = 0
    load: float = 1.0  # multiplies every arrival rate
    load_sweep: Sequence[float] = ()  # further loads, as multiples of the scenario's knee
    link_delay: float = 0.0005  # s each way between two processes
    loss_detection_delay: float = 1.0  # s until the scheduler and edges detect a dead worker
    engine: str = "fast"  # "exact": the worker's own batch, token by token
    places_by_prefix: bool = True  # False: tickets name no prefixes, so that placement is by load alone
    sample_every: float = 0.25  # s between two samples of depth and service

    @property
    def worker_count(self) -> int:
        return sum(kind.count for kind in self.workers)

    @property
    def has_shared_prefixes(self) -> bool:
        """Whether workers cache prompt prefixes and edges send block hashes."""
        return any(tenant.has_shared_prefixes for tenant in self.tenants)

    @property
    def engine_kind(self) -> str:
        """The engine model in use: shared prefixes need the exact one, because only the batch tracks block contents."""
        return "exact" if self.has_shared_prefixes else self.engine
