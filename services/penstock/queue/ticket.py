"""A ticket as the book keeps it: values alone, as small as can be, because a hundred thousand of them may wait."""

import re
import sys
from dataclasses import dataclass

from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue.prediction.prefill_backlog import PendingPrompt

NANOS_PER_SECOND = 1_000_000_000
TRACEPARENT_FORMAT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C Trace Context, section 3.2
TRACEPARENT_DASH_OFFSETS = (2, 34, 50)  # in its hex digits


@dataclass(slots=True, eq=False)
class QueuedTicket:
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
    prefix_hashes: bytes = b""  # packed as on the wire: 8 bytes each
    avoid_workers: tuple[str, ...] = ()
    packed_traceparent: bytes = b""  # its traceparent, packed
    fingerprint: int = 0  # by which it is known whether it crashes engines; 0: unknown
    may_have_run: bool = False  # for another edge

    # Where it stands in this book.
    arrived: float = 0.0  # s; here, for this attempt
    predicted_output: int = 0  # tokens, predicted at arrival; 0: nothing is known, and the most counts
    predicted_wait: float = -1.0  # s to its lease, as said at arrival; below 0: nothing was said
    raw_wait: float = 0.0  # s; the same before correction
    raw_ttft: float = 0.0  # s to its first token, likewise
    predicted_ttft: float = 0.0  # s to its first token, likewise; 0: nothing was said
    ttft_limit: float = 0.0  # s that it had for it then; 0: as long as it takes
    pending_prompt: PendingPrompt | None = None  # at its worker, from its offer to its first token
    waited: float = 0.0  # s for its lease
    lease_deadline: float = 0.0  # s; when a lease is of no use any more; 0: never
    charged_cost: float = 0.0  # weighted tokens that its tenant pays for it, once it is taken
    arrival_number: int = 0  # counts arrivals here: settles ties, so that a ticket given back finds its very place
    is_express: bool = False  # as judged at arrival
    listing_version: int = (
        0  # odd while an order holds it; each change outdates the entries that heaps still have of it
    )
    offered_to: str = ""  # that it is offered to
    times_passed: int = 0  # tickets that went first because it did not fit
    decline_count: int = 0
    tried_schedulers: tuple[str, ...] = ()  # schedulers it was offered to, since all had their turn
    refused_by: tuple[str, ...] = ()  # schedulers none of whose workers can ever run it

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_output_tokens

    @property
    def expected_output(self) -> int:
        return self.predicted_output or self.max_output_tokens

    @property
    def work(self) -> int:
        """What it is likely to come to, in tokens."""
        return self.prompt_tokens + self.expected_output

    def copy_unplaced(self) -> "QueuedTicket":
        """Return one that asks for the same and has not come yet."""
        return QueuedTicket(
            self.ticket_id,
            self.edge,
            self.tenant_id,
            self.model,
            self.priority,
            self.weight,
            self.prompt_tokens,
            self.max_output_tokens,
            self.deadline,
            self.enqueued,
            self.attempt,
            predicted_output=self.predicted_output,
            is_express=self.is_express,
        )

    @property
    def traceparent(self) -> str:
        return unpack_traceparent(self.packed_traceparent)

    @property
    def is_resumed(self) -> bool:
        """Half an answer is out already: it goes first in its class and is never evicted."""
        return self.attempt > 1

    @property
    def is_expedited(self) -> bool:
        """In its class, whatever its tenant was served."""
        return self.is_express or self.is_resumed

    @property
    def commitment_rank(self) -> int:
        """Rank for commitments: a ticket is refused only for commitments of its own or a lower rank.

        An express ticket, whose tenant is inside its share, is not refused for tenants that exceed theirs.
        """
        return 2 * self.priority - self.is_express

    @property
    def was_predicted_to_wait(self) -> bool:
        """Tell whether the prediction included a wait for a slot."""
        return self.raw_wait > 0 or self.raw_ttft > 0

    @property
    def expected_worker(self) -> str:
        """Instance id of the worker for which its first token was predicted; empty: not known."""
        prompt = self.pending_prompt
        return prompt.worker if prompt and self.ttft_limit and prompt.has_known_worker else ""

    @property
    def is_possible_poison(self) -> bool:
        """Some run of it was lost, or may have been, and perhaps with its worker."""
        return bool(self.avoid_workers) or self.may_have_run

    @property
    def is_listed(self) -> bool:
        return bool(self.listing_version & 1)


def from_frame(ticket: Ticket, edge: str) -> QueuedTicket:
    """Keep a ticket of the wire; names that many tickets share are kept once."""
    hashes = b"".join(each.to_bytes(8, "little") for each in ticket.prefix_hashes)
    return QueuedTicket(
        ticket_id=ticket.ticket_id,
        edge=edge,
        tenant_id=sys.intern(ticket.tenant_id),
        model=sys.intern(ticket.model),
        priority=ticket.priority,
        weight=ticket.weight,
        prompt_tokens=ticket.prompt_tokens,
        max_output_tokens=ticket.max_output_tokens,
        deadline=ticket.deadline_unix_nano / NANOS_PER_SECOND,
        enqueued=ticket.enqueue_unix_nano / NANOS_PER_SECOND,
        attempt=ticket.attempt,
        prefix_hashes=hashes,
        avoid_workers=tuple(sys.intern(each) for each in ticket.avoid_workers),
        packed_traceparent=pack_traceparent(ticket.traceparent),
        fingerprint=ticket.fingerprint,
        may_have_run=ticket.may_have_run,
    )


def to_frame(ticket: QueuedTicket) -> Ticket:
    packed = ticket.prefix_hashes
    return Ticket(
        ticket_id=ticket.ticket_id,
        tenant_id=ticket.tenant_id,
        priority=ticket.priority,  # type: ignore[arg-type]  # an int that came from this very enum
        weight=ticket.weight,
        model=ticket.model,
        prompt_tokens=ticket.prompt_tokens,
        max_output_tokens=ticket.max_output_tokens,
        deadline_unix_nano=round(ticket.deadline * NANOS_PER_SECOND),
        enqueue_unix_nano=round(ticket.enqueued * NANOS_PER_SECOND),
        attempt=ticket.attempt,
        prefix_hashes=[int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 8)],
        avoid_workers=ticket.avoid_workers,
        traceparent=ticket.traceparent,
        predicted_output_tokens=ticket.predicted_output,
        express=ticket.is_express,
        fingerprint=ticket.fingerprint,
        may_have_run=ticket.may_have_run,
        expected_worker=ticket.expected_worker,
    )


def pack_traceparent(text: str) -> bytes:
    """A quarter of its size in memory; what is no traceparent is kept as nothing, for nobody could follow it."""
    return bytes.fromhex(text.replace("-", "")) if TRACEPARENT_FORMAT.fullmatch(text) else b""


def unpack_traceparent(packed: bytes) -> str:
    digits = packed.hex()
    first, second, third = TRACEPARENT_DASH_OFFSETS
    return "-".join((digits[:first], digits[first:second], digits[second:third], digits[third:])) if digits else ""
