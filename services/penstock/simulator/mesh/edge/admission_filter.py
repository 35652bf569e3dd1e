"""Simulated admission filter of the edges, with the rejection cache of the edge service."""

from collections.abc import Iterable
from math import inf

from penstock.chassis.errors import Overloaded
from penstock.edge.admission.rejection_cache import RejectionCache, RejectionWindow, RequestDemand, TrafficClass
from penstock.queue.errors import RejectionWindow as QueueRejectionWindow
from penstock.queue.ticket import QueuedTicket


class SimAdmissionFilter:
    """Rejects tickets that the queue would reject; exempt tickets always pass."""

    def __init__(self, exempt_tickets: frozenset[str]) -> None:
        self.rejected = 0
        self._exempt_tickets = exempt_tickets
        self._cache = RejectionCache()

    def check(self, ticket: QueuedTicket, now: float) -> Overloaded | None:
        """Return the error if the edge rejects the ticket without asking the queue; None if it passes."""
        if not self._cache or ticket.is_resumed or ticket.ticket_id in self._exempt_tickets:
            return None
        rejection = self._cache.find(*_demand_of(ticket))
        self.rejected += rejection is not None
        return rejection.to_error(now) if rejection else None

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
        cached = [RejectionWindow(*each) for each in windows]
        self._cache.add_windows(*_demand_of(ticket), cached, sent_at=ticket.enqueued, overload=overload, now=now)


def _demand_of(ticket: QueuedTicket) -> tuple[TrafficClass, RequestDemand]:
    time_left = ticket.deadline - ticket.enqueued if ticket.deadline else inf
    traffic_class = TrafficClass(ticket.tenant_id, ticket.model, ticket.priority)
    return traffic_class, RequestDemand(ticket.prompt_tokens, ticket.max_output_tokens, ticket.enqueued, time_left)
