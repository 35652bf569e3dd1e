"""What the book asks its surroundings to say, as values that nobody changes. Streams are named by keys that the service
chose.

The classes are not frozen, as that takes three times as long to make one.
"""

from dataclasses import dataclass, field

from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.queue.errors import RejectionWindowsFn
from penstock.queue.policies.policy import SortKey
from penstock.queue.ticket import QueuedTicket


@dataclass(slots=True)
class Queued:
    """To an edge: its ticket waits."""

    edge: str
    ticket_id: str
    tickets_ahead: int
    predicted_wait: float | None  # s; None: no measured rate yet
    predicted_ttft: float | None = field(default=None, compare=False)  # s; predicted as well, and not on the wire
    rejection_windows: RejectionWindowsFn = field(default=tuple, compare=False)  # to others behind it


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
class WouldAdmit:
    """To an edge: the ticket that it asked about would be taken."""

    edge: str
    ticket_id: str


@dataclass(slots=True)
class CatalogUpdate:
    """To one edge, or to every edge: the models that can be placed."""

    edge: str  # empty: all
    entries: tuple[CatalogEntry, ...]


@dataclass(slots=True)
class Offer:
    """To a scheduler: place this ticket."""

    scheduler: str
    ticket: QueuedTicket
    uses_express_credit: bool = False


@dataclass(slots=True)
class OfferWithdrawn:
    """To a scheduler: the clients of these tickets left, or nobody is to run them for now."""

    scheduler: str
    ticket_ids: tuple[str, ...]


@dataclass(slots=True)
class CreditReturned:
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
    key: SortKey | None  # None: nothing waits
    tokens: int = field(default=0, compare=False)  # of the ticket that the key is of
    is_resumed: bool = False
    is_express: bool = False

    def addressed_to(self, scheduler: str) -> "Head":
        told = self.waiting, self.waiting_tokens, self.key, self.tokens, self.is_resumed, self.is_express
        return Head(scheduler, self.model, *told)


@dataclass(slots=True)
class TicketRemoved:
    """To the record: a ticket is out of the book, by a lease where there is no reason."""

    ticket: QueuedTicket
    reason: str


ToEdge = Queued | Leased | Shed | Withdrawn | WouldAdmit
ToScheduler = Offer | OfferWithdrawn | CreditReturned | Head
Effect = ToEdge | CatalogUpdate | ToScheduler | TicketRemoved
