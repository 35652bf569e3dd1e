"""Telemetry of a shard: one span per ticket, and metrics of waits, sheds and depth."""

from opentelemetry.metrics import CallbackOptions, Observation

from penstock.chassis.durations import NANOS_PER_S
from penstock.chassis.observability import semconv
from penstock.chassis.observability.spans import is_recorded, record_span
from penstock.chassis.observability.telemetry import meter
from penstock.queue.effects import TicketRemoved
from penstock.queue.models.model_queue import ModelQueues
from penstock.queue.snapshot import class_name

_wait = meter().create_histogram(
    semconv.PENSTOCK_QUEUE_WAIT,
    unit="s",
    description="Time from arrival at the shard to the lease.",
    explicit_bucket_boundaries_advisory=list(semconv.QUEUE_WAIT_BUCKETS),
)
_shed = meter().create_counter(semconv.PENSTOCK_QUEUE_SHED)


# Reasons for which a ticket is removed although the queue did not reject it; empty: it was leased.
UNREJECTED = frozenset({"", "EDGE_LOST", "REPLACED", "WITHDRAWN"})


def record_removed(removed: TicketRemoved, now: float) -> None:
    """Record the wait of a ticket that has left the book.

    The span of a shed ticket ends at its deadline at the latest, although the book detects it at the next tick.
    """
    ticket = removed.ticket
    if not removed.reason:
        _wait.record(now - ticket.arrived, {semconv.PENSTOCK_PRIORITY: class_name(ticket.priority)})
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


def record_shed(reason: str) -> None:
    _shed.add(1, {semconv.PENSTOCK_REASON: reason})


def observe_depths(model_queues: ModelQueues) -> None:
    """Export the waiting tickets and tokens of the shard of this process, read at each export."""

    def depths(_: CallbackOptions) -> list[Observation]:
        by_class = list(model_queues.tickets_by_class.items())  # the exporter has a thread of its own
        return [Observation(each, {semconv.PENSTOCK_PRIORITY: class_name(priority)}) for priority, each in by_class]

    def tokens(_: CallbackOptions) -> list[Observation]:
        return [Observation(model_queues.waiting.tokens)]

    meter().create_observable_gauge(semconv.PENSTOCK_QUEUE_DEPTH, [depths])
    meter().create_observable_gauge(semconv.PENSTOCK_QUEUE_TOKENS, [tokens])
