"""What telemetry hears of a shard: one span per ticket, waits, sheds and depths."""

from penstock.chassis import semconv
from penstock.chassis.telemetry import is_recorded, meter, start_span
from penstock.queue.effects import Left
from penstock.queue.shelves import Shelves
from penstock.queue.snapshot import class_name
from penstock.queue.waiting import NANOS

_wait = meter().create_histogram(
    semconv.PENSTOCK_QUEUE_WAIT,
    unit="s",
    description="From arrival at the shard to the lease.",
    explicit_bucket_boundaries_advisory=list(semconv.QUEUE_WAIT_BUCKETS),
)
_shed = meter().create_counter(semconv.PENSTOCK_QUEUE_SHED)
_depth = meter().create_gauge(semconv.PENSTOCK_QUEUE_DEPTH)
_tokens = meter().create_gauge(semconv.PENSTOCK_QUEUE_TOKENS)


def note_left(left: Left, now: float) -> None:
    """Record a ticket's time in the book; it has a reason unless it ends with a lease.

    No wait outlasts its deadline: the request ends there, and the book notices at its next tick.
    """
    ticket = left.ticket
    if not left.reason:
        _wait.record(now - ticket.arrived, {semconv.PENSTOCK_PRIORITY: class_name(ticket.priority)})
    if not is_recorded(ticket.traceparent):
        return
    facts: dict[str, str | int] = {
        semconv.PENSTOCK_TICKET_ID: ticket.ticket_id,
        semconv.PENSTOCK_TENANT_ID: ticket.tenant_id,
        semconv.PENSTOCK_PRIORITY: class_name(ticket.priority),
        semconv.PENSTOCK_ATTEMPT: ticket.attempt,
    }
    if left.reason:
        facts[semconv.PENSTOCK_REASON] = left.reason
    begun = round(ticket.arrived * NANOS)
    span = start_span(semconv.SPAN_QUEUE_WAIT, ticket.traceparent, start_time=begun, attributes=facts)
    ended = min(now, ticket.deadline) if left.reason and ticket.deadline else now
    span.end(max(begun, round(ended * NANOS)))


def note_shed(reason: str) -> None:
    _shed.add(1, {semconv.PENSTOCK_REASON: reason})


def note_depths(shelves: Shelves) -> None:
    _tokens.set(shelves.waiting.tokens)
    for priority, tickets in shelves.by_class.items():
        _depth.set(tickets, {semconv.PENSTOCK_PRIORITY: class_name(priority)})
