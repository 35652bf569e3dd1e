"""Effects of the ticket book: frames to send, as values. Keys that the service chose name the streams.

No code changes an effect. The classes are not frozen, because creating a frozen instance takes three times as long.
"""

from dataclasses import dataclass, field, replace

from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from penstock.queue.census import ClassCensus
from penstock.queue.errors import RejectionWindowsFn
from penstock.queue.policies.policy import NO_BACKLOG, ClassBacklog, SortKey
from penstock.queue.ticket import QueuedTicket


@dataclass(slots=True)
class Queued:
    """To an edge: its ticket is queued."""

    edge: str
    ticket_id: str
    tickets_ahead: int
    predicted_wait: float | None  # s; None: no measured rate yet
    predicted_ttft: float | None = field(default=None, compare=False)  # s; not on the wire
    rejection_windows: RejectionWindowsFn = field(default=tuple, compare=False)  # for similar tickets behind it
    census: ClassCensus | None = field(default=None, compare=False)  # None: it needs not wait


@dataclass(slots=True)
class Leased:
    """To an edge: its ticket was leased."""

    edge: str
    lease: Lease
    waited: float  # s


@dataclass(slots=True)
class Shed:
    """To an edge: its ticket will not be served."""

    edge: str
    ticket_id: str
    error: PenstockError
    ticket: QueuedTicket | None = field(default=None, compare=False)  # not on the wire; None: the shard has none


@dataclass(slots=True)
class Withdrawn:
    """To an edge: its tickets were withdrawn."""

    edge: str
    ticket_ids: tuple[str, ...]


@dataclass(slots=True)
class CatalogUpdate:
    """To one edge or to all edges: the models that schedulers can place."""

    edge: str  # empty: all edges
    entries: tuple[CatalogEntry, ...]


@dataclass(slots=True)
class Offer:
    """To a scheduler: place this ticket."""

    scheduler: str
    ticket: QueuedTicket
    uses_express_credit: bool = False


@dataclass(slots=True)
class OfferWithdrawn:
    """To a scheduler: the clients of these tickets have left, or the tickets are blocked as possible poison."""

    scheduler: str
    ticket_ids: tuple[str, ...]


@dataclass(slots=True)
class CreditReturned:
    """To a scheduler: credit that no ticket used."""

    scheduler: str
    model: str
    tickets: int


@dataclass(slots=True)
class Head:
    """To a scheduler: the best waiting ticket of a model."""

    scheduler: str
    model: str
    waiting: int
    waiting_tokens: int
    key: SortKey | None  # None: no ticket waits
    tokens: int = field(default=0, compare=False)  # tokens of the best ticket
    is_resumed: bool = False
    is_express: bool = False
    arrival_number: int = field(default=0, compare=False)  # of the best ticket at this shard
    waiting_prompt_tokens: int = field(default=0, compare=False)
    backlog: ClassBacklog = field(default=NO_BACKLOG, compare=False)  # of the class of the best ticket

    def addressed_to(self, scheduler: str) -> "Head":
        return replace(self, scheduler=scheduler)


@dataclass(slots=True)
class TicketRemoved:
    """To telemetry: a ticket has left the book."""

    ticket: QueuedTicket
    reason: str  # empty: the ticket was leased


ToEdge = Queued | Leased | Shed | Withdrawn
ToScheduler = Offer | OfferWithdrawn | CreditReturned | Head
Effect = ToEdge | CatalogUpdate | ToScheduler | TicketRemoved
