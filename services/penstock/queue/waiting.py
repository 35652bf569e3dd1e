"""A ticket as the book keeps it: values alone, as small as can be, because a hundred thousand of them may wait."""

import sys
from dataclasses import dataclass
from enum import IntEnum

from penstock.mesh.v1.ticket_pb2 import Ticket

NANO = 1e-9


class Place(IntEnum):
    """Where a ticket of the book is."""

    WAITING = 0
    OFFERED = 1  # a scheduler looks for a worker


@dataclass(slots=True, eq=False)
class WaitingTicket:
    """One ticket. Times are in s of the unix clock, sizes in tokens."""

    ticket_id: str
    edge: str  # stream of the edge that owns it
    tenant_id: str
    model: str
    priority: int  # 1 is served first
    weight: float
    prompt_tokens: int
    max_output_tokens: int
    deadline: float  # 0: none
    enqueued: float  # first enqueue, on whatever shard
    attempt: int
    prefix_hashes: bytes  # packed as on the wire: 8 bytes each
    avoid_workers: tuple[str, ...]
    traceparent: str
    place: Place = Place.WAITING
    scheduler: str = ""  # that it is offered to
    passed_by: int = 0  # smaller tickets that went first because it did not fit

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_output_tokens

    @property
    def resumes(self) -> bool:
        return self.attempt > 1


def from_frame(ticket: Ticket, edge: str) -> WaitingTicket:
    """Names that many tickets share are kept once."""
    hashes = b"".join(each.to_bytes(8, "little") for each in ticket.prefix_hashes)
    return WaitingTicket(
        ticket_id=ticket.ticket_id,
        edge=edge,
        tenant_id=sys.intern(ticket.tenant_id),
        model=sys.intern(ticket.model),
        priority=ticket.priority,
        weight=ticket.weight,
        prompt_tokens=ticket.prompt_tokens,
        max_output_tokens=ticket.max_output_tokens,
        deadline=ticket.deadline_unix_nano * NANO,
        enqueued=ticket.enqueue_unix_nano * NANO,
        attempt=ticket.attempt,
        prefix_hashes=hashes,
        avoid_workers=tuple(sys.intern(each) for each in ticket.avoid_workers),
        traceparent=ticket.traceparent,
    )


def to_frame(ticket: WaitingTicket) -> Ticket:
    packed = ticket.prefix_hashes
    return Ticket(
        ticket_id=ticket.ticket_id,
        tenant_id=ticket.tenant_id,
        priority=ticket.priority,  # type: ignore[arg-type]  # an int that came from this very enum
        weight=ticket.weight,
        model=ticket.model,
        prompt_tokens=ticket.prompt_tokens,
        max_output_tokens=ticket.max_output_tokens,
        deadline_unix_nano=round(ticket.deadline / NANO),
        enqueue_unix_nano=round(ticket.enqueued / NANO),
        attempt=ticket.attempt,
        prefix_hashes=[int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 8)],
        avoid_workers=ticket.avoid_workers,
        traceparent=ticket.traceparent,
    )
