"""Invariants of frames: all frames about one ticket agree, over attempts and between tiers.

Transcripts do not show such an error: a request that lost its place in the queue still ends with the right answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.chassis.durations import NANOS_PER_S
from penstock.faults.checks import oracle
from penstock.faults.checks.checker import Violation
from penstock.faults.plan import PlannedRequest
from penstock.faults.world.host_clock import MAX_DRIFT
from penstock.mesh.model_key import model_digest
from penstock.mesh.v1.admission_pb2 import Reserve, Settle, Settled
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.mesh.v1.worker_pb2 import Start

MAX_FRAME_DELAY_S = 0.5  # s from the creation of a frame to its sending, by a process that is not frozen


@dataclass
class FrameInvariants:
    """Checks every frame that is sent."""

    requests: Mapping[int, PlannedRequest]  # by prompt length
    versions: Mapping[str, int]  # of the model, by digest
    now: Callable[[], float]  # s of the world
    max_frame_delay_s: float = MAX_FRAME_DELAY_S  # s from the creation of a frame to its sending
    violations: list[Violation] = field(default_factory=list)
    last_tickets: dict[int, str] = field(default_factory=dict)  # last new ticket of a reservation, by prompt length
    _reserved_tickets: set[str] = field(default_factory=set)
    _enqueued_at: dict[str, float] = field(default_factory=dict)  # s of the world, by ticket, as its age says
    _attempts: dict[str, int] = field(default_factory=dict)  # by ticket
    _settlements: dict[str, bytes] = field(default_factory=dict)  # by reservation
    _confirmed: set[str] = field(default_factory=set)  # reservations whose settlement auth has confirmed
    _seeds: dict[str, int] = field(default_factory=dict)  # by ticket
    _ticket_by_lease: dict[str, str] = field(default_factory=dict)  # of each lease that was started

    def on_frame(self, kind: str, frame: Any) -> None:
        if check := _CHECKS.get(kind):
            for text in check(self, getattr(frame, kind)):
                self.violations.append(Violation("frame", f"{kind}: {text}"))

    def check_reserve(self, reserve: Reserve) -> Iterator[str]:
        """Record the last new ticket; an edge sends a reservation again if its answer may have been lost."""
        if reserve.request_id not in self._reserved_tickets:
            self.last_tickets[reserve.prompt_tokens] = reserve.request_id
        self._reserved_tickets.add(reserve.request_id)
        yield from ()

    def check_enqueue(self, frame: Any) -> Iterator[str]:
        for ticket in frame.tickets:
            yield from self._check_ticket(ticket)

    def _check_ticket(self, ticket: Ticket) -> Iterator[str]:
        age = ticket.age_nanos / NANOS_PER_S
        enqueued_at = self.now() - age
        first = self._enqueued_at.setdefault(ticket.ticket_id, enqueued_at)
        if abs(enqueued_at - first) > 2 * MAX_DRIFT * age + self.max_frame_delay_s:
            yield f"{ticket.ticket_id} lost its place in the queue"
        if ticket.attempt < self._attempts.get(ticket.ticket_id, 0):
            yield f"{ticket.ticket_id} went back to attempt {ticket.attempt}"
        self._attempts[ticket.ticket_id] = ticket.attempt

    def check_start(self, start: Start) -> Iterator[str]:
        length = len(start.token_ids) - start.emitted
        request, version = self.requests.get(length), self.versions.get(model_digest(start.model))
        if version is None:
            yield f"{start.ticket_id} is for {start.model}, which no worker ever served"
            return
        if request is None or tuple(start.token_ids[:length]) != request.prompt_for(version):
            yield f"{start.ticket_id} has a prompt that no client sent"
            return
        seed = self._seeds.setdefault(start.ticket_id, start.sampling.seed)
        if start.sampling.seed != seed:
            yield f"{start.ticket_id} ran with seed {seed} and resumes with {start.sampling.seed}"
        if start.emitted + start.max_output_tokens != request.max_output_tokens:
            granted = start.emitted + start.max_output_tokens
            yield f"{start.ticket_id} may generate {granted} tokens; the client allowed {request.max_output_tokens}"
        answer = oracle.expected_answer(
            start.token_ids[:length], seed, request.max_output_tokens, ignore_eos=True, stops=(), version=version
        )
        if list(start.token_ids[length:]) != answer.token_ids[: start.emitted]:
            yield f"{start.ticket_id} resumes after tokens that are not its own"
        if self._ticket_by_lease.setdefault(start.lease_id, start.ticket_id) != start.ticket_id:
            yield f"lease {start.lease_id} was started for two tickets"

    def check_settle(self, settle: Settle) -> Iterator[str]:
        """A settlement may differ from one that auth has confirmed: it has no effect.

        A replica's late answer to a request that another replica has answered makes the edge settle it again.
        """
        settlement = settle.SerializeToString(deterministic=True)
        if settle.reservation_id in self._confirmed:
            return
        if self._settlements.setdefault(settle.reservation_id, settlement) != settlement:
            yield f"reservation {settle.reservation_id} is settled in two different ways"

    def check_settled(self, settled: Settled) -> Iterator[str]:
        self._confirmed.add(settled.reservation_id)
        yield from ()


_CHECKS: Mapping[str, Callable[[FrameInvariants, Any], Iterable[str]]] = {
    "reserve": FrameInvariants.check_reserve,
    "enqueue": FrameInvariants.check_enqueue,
    "start": FrameInvariants.check_start,
    "settle": FrameInvariants.check_settle,
    "settled": FrameInvariants.check_settled,
}
