"""What the book asks its surroundings to say, as values that nobody changes. Streams are named by keys that the service
chose.

The classes are not frozen, as that takes three times as long to make one.
"""

from dataclasses import dataclass, field

from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.queue.errors import AskClosed
from penstock.queue.policies.order import Key
from penstock.queue.waiting import WaitingTicket


@dataclass(slots=True)
class Queued:
    """To an edge: its ticket waits."""

    edge: str
    ticket_id: str
    ahead: int
    predicted_wait: float | None  # s; None: no measured rate yet
    first_token: float | None = field(default=None, compare=False)  # s; predicted as well, and not on the wire
    closed: AskClosed = field(default=tuple, compare=False)  # to others behind it


@dataclass(slots=True)
class Leased:
    """To an edge: its ticket has a worker."""

    edge: str
    lease: Lease
    waited: float  # s


@dataclass(slots=True)
class Shed:
    """To an edge: its ticket will not be served."""

    edge: str
    ticket_id: str
    error: PenstockError


@dataclass(slots=True)
class Withdrawn:
    """To an edge: tickets are out."""

    edge: str
    ticket_ids: tuple[str, ...]


@dataclass(slots=True)
class Welcome:
    """To an edge: the ticket that it asked about would be taken."""

    edge: str
    ticket_id: str


@dataclass(slots=True)
class Models:
    """To one edge, or to every edge: the models that can be placed."""

    edge: str  # empty: all
    entries: tuple[CatalogEntry, ...]


@dataclass(slots=True)
class Offer:
    """To a scheduler: place this ticket."""

    scheduler: str
    ticket: WaitingTicket
    uses_urgent_credit: bool = False


@dataclass(slots=True)
class Recalled:
    """To a scheduler: the clients of these tickets left, or nobody is to run them for now."""

    scheduler: str
    ticket_ids: tuple[str, ...]


@dataclass(slots=True)
class Returned:
    """To a scheduler: credit that found no ticket."""

    scheduler: str
    model: str
    tickets: int


@dataclass(slots=True)
class Head:
    """To a scheduler: what waits most urgently for a model."""

    scheduler: str
    model: str
    waiting: int
    waiting_tokens: int
    key: Key | None  # None: nothing waits
    tokens: int = field(default=0, compare=False)  # of the ticket that the key is of
    resumes: bool = False
    is_urgent: bool = False

    def to(self, scheduler: str) -> "Head":
        told = self.waiting, self.waiting_tokens, self.key, self.tokens, self.resumes, self.is_urgent
        return Head(scheduler, self.model, *told)


@dataclass(slots=True)
class Left:
    """To the record: a ticket is out of the book, by a lease where there is no reason."""

    ticket: WaitingTicket
    reason: str


ToEdge = Queued | Leased | Shed | Withdrawn | Welcome
ToScheduler = Offer | Recalled | Returned | Head
Effect = ToEdge | Models | ToScheduler | Left
