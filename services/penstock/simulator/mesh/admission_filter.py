"""What edges refuse by themselves, under virtual time: with the core that they have at their doors.

An edge asks the queue before it reserves; here nothing is reserved, so that who would ask is enqueued at once.
"""

from collections.abc import Iterable
from math import inf

from penstock.chassis.errors import Overloaded
from penstock.edge.refusals import Ask, Closing, Kind, Refusals
from penstock.queue.errors import Closed
from penstock.queue.waiting import WaitingTicket


class SimDoor:
    """`let_in`: tickets that pass whatever the queue said of others."""

    def __init__(self, let_in: frozenset[str]) -> None:
        self.refused = 0
        self._let_in = let_in
        self._refusals = Refusals()

    def check(self, ticket: WaitingTicket, now: float) -> Overloaded | None:
        """Return why a ticket that would be enqueued now is refused unasked."""
        if not self._refusals or ticket.resumes or ticket.ticket_id in self._let_in:
            return None
        refusal = self._refusals.find(*_asked(ticket))
        self.refused += refusal is not None
        return refusal.error(now) if refusal else None

    def queued(self, ticket: WaitingTicket, closed: Iterable[Closed], now: float) -> None:
        if not ticket.resumes:
            self._refusals.taken(*_asked(ticket))
            self._closed(ticket, closed, None, now)

    def shed(self, ticket: WaitingTicket, closed: Iterable[Closed], told: Overloaded, now: float) -> None:
        if not ticket.resumes:
            self._closed(ticket, closed, told, now)

    def _closed(self, ticket: WaitingTicket, closed: Iterable[Closed], told: Overloaded | None, now: float) -> None:
        closings = [Closing(*each) for each in closed]
        self._refusals.closed(*_asked(ticket), closings, asked_at=ticket.enqueued, told=told, now=now)


def _asked(ticket: WaitingTicket) -> tuple[Kind, Ask]:
    time = ticket.deadline - ticket.enqueued if ticket.deadline else inf
    kind = Kind(ticket.tenant_id, ticket.model, ticket.priority)
    return kind, Ask(ticket.prompt_tokens, ticket.max_output_tokens, ticket.enqueued, time)
