"""What edges refuse by themselves, under virtual time: with the core that they have at their doors.

An edge asks the queue before it reserves; here nothing is reserved, so that who would ask is enqueued at once.
"""

from collections.abc import Iterable
from math import inf

from penstock.chassis.errors import Overloaded
from penstock.edge.refusals import RejectionCache, RejectionWindow, RequestDemand, TrafficClass
from penstock.queue.errors import RejectionWindow as QueueRejectionWindow
from penstock.queue.waiting import QueuedTicket


class SimDoor:
    """`let_in`: tickets that pass whatever the queue said of others."""

    def __init__(self, let_in: frozenset[str]) -> None:
        self.refused = 0
        self._let_in = let_in
        self._refusals = RejectionCache()

    def check(self, ticket: QueuedTicket, now: float) -> Overloaded | None:
        """Return why a ticket that would be enqueued now is refused unasked."""
        if not self._refusals or ticket.is_resumed or ticket.ticket_id in self._let_in:
            return None
        refusal = self._refusals.find(*_asked(ticket))
        self.refused += refusal is not None
        return refusal.to_error(now) if refusal else None

    def queued(self, ticket: QueuedTicket, closed: Iterable[QueueRejectionWindow], now: float) -> None:
        if not ticket.is_resumed:
            self._refusals.on_admitted(*_asked(ticket))
            self._closed(ticket, closed, None, now)

    def shed(self, ticket: QueuedTicket, closed: Iterable[QueueRejectionWindow], told: Overloaded, now: float) -> None:
        if not ticket.is_resumed:
            self._closed(ticket, closed, told, now)

    def _closed(
        self, ticket: QueuedTicket, closed: Iterable[QueueRejectionWindow], told: Overloaded | None, now: float
    ) -> None:
        closings = [RejectionWindow(*each) for each in closed]
        self._refusals.add_windows(*_asked(ticket), closings, sent_at=ticket.enqueued, overload=told, now=now)


def _asked(ticket: QueuedTicket) -> tuple[TrafficClass, RequestDemand]:
    time = ticket.deadline - ticket.enqueued if ticket.deadline else inf
    kind = TrafficClass(ticket.tenant_id, ticket.model, ticket.priority)
    return kind, RequestDemand(ticket.prompt_tokens, ticket.max_output_tokens, ticket.enqueued, time)
