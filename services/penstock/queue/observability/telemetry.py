"""Telemetry of a shard: one span per ticket."""

from penstock.chassis.durations import NANOS_PER_S
from penstock.chassis.observability import semconv
from penstock.chassis.observability.spans import is_recorded, record_span
from penstock.mesh.class_names import class_name
from penstock.queue.effects import TicketRemoved

# Reasons for which a ticket is removed although the queue did not reject it; empty: it was leased.
UNREJECTED = frozenset({"", "EDGE_LOST", "REPLACED", "WITHDRAWN"})


def record_removed(removed: TicketRemoved, now: float) -> None:
    """Record the span of a ticket that has left the book.

    That of a shed ticket ends at its deadline at the latest, although the book detects it at the next tick.
    """
    ticket = removed.ticket
    if not is_recorded(ticket.traceparent):
        return
    attributes: dict[str, str | int] = {
        semconv.PENSTOCK_TICKET_ID: ticket.ticket_id,
        semconv.PENSTOCK_TENANT_ID: ticket.tenant_id,
        semconv.PENSTOCK_PRIORITY: class_name(ticket.priority),
        semconv.PENSTOCK_ATTEMPT: ticket.attempt,
    }
    if removed.reason:
        attributes[semconv.PENSTOCK_REASON] = removed.reason
    begun = round(ticket.arrived * NANOS_PER_S)
    ended = min(now, ticket.deadline) if removed.reason and ticket.deadline else now
    record_span(
        semconv.SPAN_QUEUE_WAIT,
        ticket.traceparent,
        begun,
        round(ended * NANOS_PER_S),
        attributes,
        error="" if removed.reason in UNREJECTED else removed.reason,
    )
