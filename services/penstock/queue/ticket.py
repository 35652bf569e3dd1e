"""The ticket as the book keeps it. It is small, because 100,000 tickets may wait."""

import math
import re
import sys
from dataclasses import dataclass

from penstock.chassis.durations import NANOS_PER_S, nanos_left, nanos_since
from penstock.chassis.garbage import untracked
from penstock.mesh.prefill_rank import prefill_rank
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.queue.prediction.worker_backlog import PendingPrompt, commitment_rank
from penstock.v1.inference_pb2 import Priority

TRACEPARENT_FORMAT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C Trace Context, section 3.2
DEFAULT_WEIGHT = 1.0  # of most tenants
TRACEPARENT_DASH_OFFSETS = (2, 34, 50)  # offsets in the hex digits


@dataclass(slots=True, eq=False)
class QueuedTicket:
    """One ticket. Times are in s of this shard's clock, sizes in tokens."""

    ticket_id: str
    edge: str  # stream of the edge that owns it
    tenant_id: str
    model: str
    priority: int  # 1 is served first
    weight: float
    prompt_tokens: int
    max_output_tokens: int
    deadline: float  # 0: none
    enqueued: float  # first enqueue, on any shard
    attempt: int
    prefix_hashes: bytes = b""  # packed as on the wire: 8 bytes each
    avoid_workers: tuple[str, ...] = ()
    packed_traceparent: bytes = b""
    fingerprint: int = 0  # identifies the request in poison reports; 0: unknown
    may_have_run: bool = False  # for another edge, or for this edge before it restarted
    is_readmitted: bool = False  # this or another shard has admitted it before
    away: float = 0.0  # s of its TTFT target that a guest spends outside of this region; 0: not a guest

    # State in this book.
    arrived: float = 0.0  # s; arrival of this attempt at this shard
    predicted_output: int = 0  # tokens, predicted at arrival; 0: unknown, and max_output_tokens counts
    predicted_wait: float = -1.0  # s to its lease, predicted at arrival; below 0: not predicted
    raw_wait: float = 0.0  # s to its lease, before correction
    raw_ttft: float = 0.0  # s to its first token, before correction
    predicted_ttft: float = 0.0  # s to its first token, predicted at arrival; 0: not predicted
    ttft_limit: float = 0.0  # s to its first token, allowed at arrival; 0: no limit
    pending_prompt: PendingPrompt | None = None  # at its worker, from its offer to its first token
    waited: float = 0.0  # s from arrival to its lease
    lease_deadline: float = 0.0  # s; a later lease would be of no use; 0: none
    charged_cost: float = 0.0  # weighted tokens charged to its tenant; 0 while it waits
    arrival_number: int = 0  # breaks ties, so that a returned ticket gets its former place
    is_express: bool = False  # decided at arrival
    listing_version: int = 0  # odd while a policy lists it; heap entries with an older version are stale
    offered_to: str = ""  # scheduler with an open offer; empty: none
    times_passed: int = 0  # tickets that were taken first because this one did not fit
    decline_count: int = 0
    tried_schedulers: tuple[str, ...] = ()  # schedulers that it was offered to in this round
    refused_by: tuple[str, ...] = ()  # schedulers whose workers can never run it

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.max_output_tokens

    @property
    def expected_output(self) -> int:
        return self.predicted_output or self.max_output_tokens

    @property
    def work(self) -> int:
        """Prompt tokens and predicted output tokens."""
        return self.prompt_tokens + self.expected_output

    def copy_unplaced(self) -> "QueuedTicket":
        """Return a ticket with the same demand and without state in this book."""
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
            away=self.away,
            predicted_output=self.predicted_output,
            is_express=self.is_express,
        )

    @property
    def traceparent(self) -> str:
        return unpack_traceparent(self.packed_traceparent)

    @property
    def is_resumed(self) -> bool:
        """Part of the answer was emitted: the ticket is dispatched first in its class and is never evicted."""
        return self.attempt > 1

    @property
    def is_expedited(self) -> bool:
        """The ticket is dispatched before others of its class, independent of the service that its tenant received."""
        return self.is_express or self.is_resumed

    @property
    def is_batch(self) -> bool:
        return self.priority == Priority.PRIORITY_BATCH

    @property
    def prefill_rank(self) -> int:
        return prefill_rank(self.priority, is_express=self.is_express)

    @property
    def commitment_rank(self) -> int:
        return commitment_rank(self.priority, is_express=self.is_express)

    @property
    def promised_by(self) -> float:
        """Time in s by which its first token was promised; inf: none was promised."""
        return self.arrived + self.ttft_limit if self.ttft_limit else math.inf

    @property
    def was_predicted_to_wait(self) -> bool:
        """Whether the prediction included a wait for a slot."""
        return self.raw_wait > 0 or self.raw_ttft > 0

    @property
    def expected_worker(self) -> str:
        """Instance id of the worker for which its first token was predicted; empty: not known."""
        prompt = self.pending_prompt
        return prompt.worker if prompt and self.ttft_limit and prompt.has_known_worker else ""

    @property
    def is_guest(self) -> bool:
        """The ticket is a request of another region, which is admitted after own requests."""
        return self.away > 0

    @property
    def is_possible_poison(self) -> bool:
        """An earlier run of the ticket was lost or may have been lost, so it may have crashed an engine."""
        return bool(self.avoid_workers) or self.may_have_run

    @property
    def is_listed(self) -> bool:
        return bool(self.listing_version & 1)


def from_frame(ticket: Ticket, edge: str, now: float) -> QueuedTicket:
    """Return the ticket of a frame received at `now`. Values that many tickets have are one object, to save memory."""
    hashes = b"".join([each.to_bytes(8, "little") for each in ticket.prefix_hashes])
    queued = QueuedTicket(
        ticket_id=ticket.ticket_id,
        edge=edge,
        tenant_id=sys.intern(ticket.tenant_id),
        model=sys.intern(ticket.model),
        priority=ticket.priority,
        weight=DEFAULT_WEIGHT if ticket.weight == DEFAULT_WEIGHT else ticket.weight,
        prompt_tokens=ticket.prompt_tokens,
        max_output_tokens=ticket.max_output_tokens,
        deadline=now + ticket.time_left_nanos / NANOS_PER_S if ticket.time_left_nanos else 0.0,
        enqueued=now - ticket.age_nanos / NANOS_PER_S if ticket.age_nanos else now,
        attempt=ticket.attempt,
        prefix_hashes=hashes,
        avoid_workers=tuple(sys.intern(each) for each in ticket.avoid_workers),
        packed_traceparent=pack_traceparent(ticket.traceparent),
        fingerprint=ticket.fingerprint,
        may_have_run=ticket.may_have_run,
        is_readmitted=ticket.readmitted,
        away=ticket.away_nanos / NANOS_PER_S,
    )
    return untracked(queued)


def to_frame(ticket: QueuedTicket, now: float) -> Ticket:
    packed = ticket.prefix_hashes
    return Ticket(
        ticket_id=ticket.ticket_id,
        tenant_id=ticket.tenant_id,
        priority=ticket.priority,  # type: ignore[arg-type]  # the int is a value of this enum
        weight=ticket.weight,
        model=ticket.model,
        prompt_tokens=ticket.prompt_tokens,
        max_output_tokens=ticket.max_output_tokens,
        time_left_nanos=nanos_left(ticket.deadline or math.inf, now),
        age_nanos=nanos_since(ticket.enqueued, now),
        attempt=ticket.attempt,
        prefix_hashes=[int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 8)],
        avoid_workers=ticket.avoid_workers,
        traceparent=ticket.traceparent,
        predicted_output_tokens=ticket.predicted_output,
        express=ticket.is_express,
        fingerprint=ticket.fingerprint,
        may_have_run=ticket.may_have_run,
        expected_worker=ticket.expected_worker,
        readmitted=ticket.is_readmitted,
        first_token_nanos=nanos_left(ticket.promised_by, now),
        usable_share=ticket.pending_prompt.usable_share if ticket.pending_prompt else 0.0,
    )


def pack_traceparent(text: str) -> bytes:
    """Pack a traceparent into a quarter of its size; empty if it is malformed."""
    return bytes.fromhex(text.replace("-", "")) if TRACEPARENT_FORMAT.fullmatch(text) else b""


def unpack_traceparent(packed: bytes) -> str:
    digits = packed.hex()
    first, second, third = TRACEPARENT_DASH_OFFSETS
    return "-".join((digits[:first], digits[first:second], digits[second:third], digits[third:])) if digits else ""
