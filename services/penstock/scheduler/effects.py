"""Effects of the dispatcher: frames to send, as values. Keys that the service chose name the streams."""

from dataclasses import dataclass

from penstock.mesh.v1.queue_pb2 import OutputProgress, PlacedPrompts, PoolStats, ServedTicket, VirtualTime, WorkerSteps
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease, PoisonReport


@dataclass(slots=True)
class Place:
    """To a queue shard: the offered ticket was leased."""

    queue: str
    lease: Lease


@dataclass(slots=True)
class Decline:
    """To a queue shard: the offered ticket was not leased."""

    queue: str
    ticket_id: str
    reason: str  # NO_CAPACITY or NO_WORKER


@dataclass(slots=True)
class GrantCredit:
    """To a queue shard: credit for further offers."""

    queue: str
    model: str
    tickets: int
    max_ticket_tokens: int  # tokens of the largest ticket; 0: no limit
    tokens_per_second: float  # measured by the workers; 0: unknown
    total_tokens: int = 0  # tokens over all tickets that use the credit
    return_unused: bool = False  # the shard returns unused credit at once, including earlier credit
    express_tickets: int = 0  # expedited tickets, in addition to `tickets`


@dataclass(slots=True)
class SendPoolStats:
    """To a queue shard: statistics of the workers of a model."""

    queue: str
    stats: PoolStats


@dataclass(slots=True)
class SendServiceReport:
    """To a queue shard: the service that its tickets have received."""

    queue: str
    tickets: tuple[ServedTicket, ...]
    workers: tuple[WorkerSteps, ...] = ()
    progress: tuple[OutputProgress, ...] = ()


@dataclass(slots=True)
class SendVirtualTimes:
    """To a queue shard: the virtual time of other shards."""

    queue: str
    times: tuple[VirtualTime, ...]


@dataclass(slots=True)
class SendPlacedPrompts:
    """To a queue shard: the prompts of all shards that were placed recently."""

    queue: str
    prompts: PlacedPrompts


@dataclass(slots=True)
class CatalogUpdate:
    """To every queue shard: the models that this scheduler serves, and the reported poison requests."""

    entries: tuple[CatalogEntry, ...]
    poison_reports: tuple[PoisonReport, ...] = ()


@dataclass(slots=True)
class Expect:
    """To a worker: an edge will start this lease."""

    worker: str
    lease: Lease


@dataclass(slots=True)
class Revoke:
    """To a worker: this lease is void. It must not be started, and its run ends."""

    worker: str
    lease_id: str


# Frames by which a shard predicts and charges. They precede the credit that follows from the same change.
Report = SendPoolStats | SendServiceReport | SendVirtualTimes | SendPlacedPrompts
ToQueue = Place | Decline | GrantCredit | SendPoolStats | SendServiceReport | SendVirtualTimes | SendPlacedPrompts
ToWorker = Expect | Revoke
Effect = ToQueue | ToWorker | CatalogUpdate
