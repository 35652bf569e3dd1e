"""What edges refuse by themselves, under virtual time: with the core that they have at their doors.

An edge asks the queue before it reserves; here nothing is reserved, so that who would ask is enqueued at once.
"""

from collections.abc import Iterable
from math import inf

from penstock.chassis.errors import Overloaded
from penstock.edge.admission.rejection_cache import RejectionCache, RejectionWindow, RequestDemand, TrafficClass
from penstock.queue.errors import RejectionWindow as QueueRejectionWindow
from penstock.queue.ticket import QueuedTicket


class SimAdmissionFilter:
    """`let_in`: tickets that pass whatever the queue said of others."""

    def __init__(self, exempt_tickets: frozenset[str]) -> None:
        self.rejected = 0
        self._exempt_tickets = exempt_tickets
        self._cache = RejectionCache()

    def check(self, ticket: QueuedTicket, now: float) -> Overloaded | None:
        """Return why a ticket that would be enqueued now is refused unasked."""
        if not self._cache or ticket.is_resumed or ticket.ticket_id in self._exempt_tickets:
            return None
        refusal = self._cache.find(*_demand_of(ticket))
        self.rejected += refusal is not None
        return refusal.to_error(now) if refusal else None

    def on_queued(self, ticket: QueuedTicket, windows: Iterable[QueueRejectionWindow], now: float) -> None:
        if not ticket.is_resumed:
            self._cache.on_admitted(*_demand_of(ticket))
            self._cache_windows(ticket, windows, None, now)

    def on_shed(
        self, ticket: QueuedTicket, windows: Iterable[QueueRejectionWindow], overload: Overloaded, now: float
    ) -> None:
        if not ticket.is_resumed:
            self._cache_windows(ticket, windows, overload, now)

    def _cache_windows(
        self, ticket: QueuedTicket, windows: Iterable[QueueRejectionWindow], overload: Overloaded | None, now: float
    ) -> None:
        closings = [RejectionWindow(*each) for each in windows]
        self._cache.add_windows(*_demand_of(ticket), closings, sent_at=ticket.enqueued, overload=overload, now=now)


def _demand_of(ticket: QueuedTicket) -> tuple[TrafficClass, RequestDemand]:
    time = ticket.deadline - ticket.enqueued if ticket.deadline else inf
    kind = TrafficClass(ticket.tenant_id, ticket.model, ticket.priority)
    return kind, RequestDemand(ticket.prompt_tokens, ticket.max_output_tokens, ticket.enqueued, time)
