"""What the dispatcher asks its surroundings to say. Streams are named by keys that the service chose."""

from dataclasses import dataclass

from penstock.mesh.v1.queue_pb2 import Pace, ServedTicket, VirtualTime, WorkerSteps
from penstock.mesh.v1.ticket_pb2 import Blame, CatalogEntry, Lease


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
class GiveCredit:
    """To a queue: it may offer so many more."""

    queue: str
    model: str
    tickets: int
    max_tokens: int  # 0: whatever its size
    tokens_per_second: float
    total_tokens: int = 0  # over all tickets that it is used for
    once: bool = False  # what is not used at once comes back, with what was given before
    urgent_tickets: int = 0  # beyond those, for what goes first in its class


@dataclass(slots=True)
class TellPace:
    """To a queue: how fast the workers of a model are."""

    queue: str
    pace: Pace


@dataclass(slots=True)
class TellServed:
    """To a queue: what its tickets were served."""

    queue: str
    tickets: tuple[ServedTicket, ...]
    workers: tuple[WorkerSteps, ...] = ()


@dataclass(slots=True)
class TellTimes:
    """To a queue: how far other shards have come."""

    queue: str
    times: tuple[VirtualTime, ...]


@dataclass(slots=True)
class Catalog:
    """To every queue: the models that can be placed here, and the requests that nobody is to run."""

    entries: tuple[CatalogEntry, ...]
    blames: tuple[Blame, ...] = ()


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


ToQueue = Place | Decline | GiveCredit | TellPace | TellServed | TellTimes
ToWorker = Expect | Revoke
Effect = ToQueue | ToWorker | Catalog
