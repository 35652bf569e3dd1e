"""What the dispatcher asks its surroundings to say. Streams are named by keys that the service chose."""

from dataclasses import dataclass

from penstock.mesh.v1.queue_pb2 import PoolStats, ServedTicket, VirtualTime, WorkerSteps
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease, PoisonReport


@dataclass(slots=True)
class Place:
    """To a queue: the ticket it offered has a worker."""

    queue: str
    lease: Lease


@dataclass(slots=True)
class Decline:
    """To a queue: the ticket it offered has none."""

    queue: str
    ticket_id: str
    reason: str  # NO_CAPACITY or NO_WORKER


@dataclass(slots=True)
class GrantCredit:
    """To a queue: it may offer so many more."""

    queue: str
    model: str
    tickets: int
    max_ticket_tokens: int  # 0: whatever its size
    tokens_per_second: float
    total_tokens: int = 0  # over all tickets that it is used for
    return_unused: bool = False  # what is not used at once comes back, with what was given before
    express_tickets: int = 0  # beyond those, for what goes first in its class


@dataclass(slots=True)
class SendPoolStats:
    """To a queue: how fast the workers of a model are."""

    queue: str
    stats: PoolStats


@dataclass(slots=True)
class SendServiceReport:
    """To a queue: what its tickets were served."""

    queue: str
    tickets: tuple[ServedTicket, ...]
    workers: tuple[WorkerSteps, ...] = ()


@dataclass(slots=True)
class SendVirtualTimes:
    """To a queue: how far other shards have come."""

    queue: str
    times: tuple[VirtualTime, ...]


@dataclass(slots=True)
class CatalogUpdate:
    """To every queue: the models that can be placed here, and the requests that nobody is to run."""

    entries: tuple[CatalogEntry, ...]
    poison_reports: tuple[PoisonReport, ...] = ()


@dataclass(slots=True)
class Expect:
    """To a worker: an edge will start this lease."""

    worker: str
    lease: Lease


@dataclass(slots=True)
class Revoke:
    """To a worker: this lease will not be started."""

    worker: str
    lease_id: str


ToQueue = Place | Decline | GrantCredit | SendPoolStats | SendServiceReport | SendVirtualTimes
ToWorker = Expect | Revoke
Effect = ToQueue | ToWorker | CatalogUpdate
