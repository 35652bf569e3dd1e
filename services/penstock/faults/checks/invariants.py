"""What must hold of the frames themselves, whatever comes of them: the same ticket is told the same way by all.

Clients cannot see it: a request that lost its place in the line still ends well, and so does one charged by two minds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.faults.checks import oracle
from penstock.faults.checks.checker import Violation
from penstock.faults.plan import PlannedRequest
from penstock.mesh.v1.admission_pb2 import Reserve, Settle
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.mesh.v1.worker_pb2 import Start


@dataclass
class FrameInvariants:
    """Hears every frame that leaves. `asks` by the length of their prompts."""

    requests: Mapping[int, PlannedRequest]
    violations: list[Violation] = field(default_factory=list)
    last_tickets: dict[int, str] = field(default_factory=dict)  # ticket by which auth was last asked, by prompt length
    _reserved_tickets: set[str] = field(default_factory=set)  # tickets
    _first_enqueued_at: dict[str, int] = field(default_factory=dict)  # ns, by ticket: its first enqueue
    _attempts: dict[str, int] = field(default_factory=dict)  # by ticket
    _settlements: dict[str, bytes] = field(default_factory=dict)  # by reservation
    _seeds: dict[str, int] = field(default_factory=dict)  # by ticket
    _ticket_by_lease: dict[str, str] = field(default_factory=dict)  # ticket of each lease that was started

    def on_frame(self, kind: str, frame: Any) -> None:
        if check := _CHECKS.get(kind):
            for text in check(self, getattr(frame, kind)):
                self.violations.append(Violation("frame", f"{kind}: {text}"))

    def check_reserve(self, reserve: Reserve) -> Iterator[str]:
        """An edge asks again for what it may have lost: that is not the last."""
        if reserve.request_id not in self._reserved_tickets:
            self.last_tickets[reserve.prompt_tokens] = reserve.request_id
        self._reserved_tickets.add(reserve.request_id)
        yield from ()

    def check_enqueue(self, frame: Any) -> Iterator[str]:
        for ticket in frame.tickets:
            yield from self._check_ticket(ticket)

    def _check_ticket(self, ticket: Ticket) -> Iterator[str]:
        arrived = self._first_enqueued_at.setdefault(ticket.ticket_id, ticket.enqueue_unix_nano)
        if ticket.enqueue_unix_nano != arrived:
            yield f"{ticket.ticket_id} lost its place in the line"
        if ticket.attempt < self._attempts.get(ticket.ticket_id, 0):
            yield f"{ticket.ticket_id} went back to attempt {ticket.attempt}"
        self._attempts[ticket.ticket_id] = ticket.attempt

    def check_start(self, start: Start) -> Iterator[str]:
        length = len(start.token_ids) - start.emitted
        ask = self.requests.get(length)
        if ask is None or tuple(start.token_ids[:length]) != ask.prompt:
            yield f"{start.ticket_id} has a prompt that nobody asked for"
            return
        seed = self._seeds.setdefault(start.ticket_id, start.sampling.seed)
        if start.sampling.seed != seed:
            yield f"{start.ticket_id} ran with seed {seed} and goes on with {start.sampling.seed}"
        if start.emitted + start.max_output_tokens != ask.max_output_tokens:
            granted = start.emitted + start.max_output_tokens
            yield f"{start.ticket_id} may come to {granted} tokens, asked {ask.max_output_tokens}"
        owed = oracle.expected_answer(ask.prompt, seed, ask.max_output_tokens, ignore_eos=True, stops=()).token_ids
        if list(start.token_ids[length:]) != owed[: start.emitted]:
            yield f"{start.ticket_id} goes on after tokens that are not its own"
        if self._ticket_by_lease.setdefault(start.lease_id, start.ticket_id) != start.ticket_id:
            yield f"lease {start.lease_id} was started for two tickets"

    def check_settle(self, settle: Settle) -> Iterator[str]:
        told = settle.SerializeToString(deterministic=True)
        if self._settlements.setdefault(settle.reservation_id, told) != told:
            yield f"reservation {settle.reservation_id} is settled otherwise than before"


_CHECKS: Mapping[str, Callable[[FrameInvariants, Any], Iterable[str]]] = {
    "reserve": FrameInvariants.check_reserve,
    "enqueue": FrameInvariants.check_enqueue,
    "start": FrameInvariants.check_start,
    "settle": FrameInvariants.check_settle,
}
