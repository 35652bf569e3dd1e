"""Metrics of a shard: the waits of leased tickets, rejections, and values that are read at each collection."""

from collections import Counter as Totals
from collections.abc import Container, Iterator
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import Counter, Histogram

from penstock.chassis.observability.metrics import Observation, counter, exemplar_in, histogram
from penstock.chassis.observability.series import TENANT
from penstock.chassis.observability.tenant_labels import TenantLabels
from penstock.mesh.class_names import class_name
from penstock.mesh.model_key import model_name
from penstock.queue import series
from penstock.queue.effects import Shed
from penstock.queue.ticket import QueuedTicket
from penstock.queue.tickets.book import TicketBook
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_INTERACTIVE, PRIORITY_STANDARD

MAX_BOUND = 4_096  # label sets whose instruments are kept
CLASSES: tuple[int, ...] = (PRIORITY_INTERACTIVE, PRIORITY_STANDARD, PRIORITY_BATCH)

_wait = histogram(series.WAIT)
_tenant_wait = histogram(series.TENANT_WAIT)
_predicted_wait = histogram(series.PREDICTED_WAIT)
_wait_error = histogram(series.WAIT_ERROR)
_shed = counter(series.SHED)


class _Waits(NamedTuple):
    wait: Histogram
    of_tenant: Histogram
    predicted: Histogram
    late: Histogram
    early: Histogram


@lru_cache(maxsize=MAX_BOUND)
def _waits_of(model: str, priority: int, tenant: str) -> _Waits:
    name, class_ = model_name(model), class_name(priority)
    return _Waits(
        _wait.labels(name, class_),
        _tenant_wait.labels(tenant),
        _predicted_wait.labels(name, class_),
        _wait_error.labels(name, "late"),
        _wait_error.labels(name, "early"),
    )


@lru_cache(maxsize=MAX_BOUND)
def _shed_of(model: str, priority: int, tenant: str, reason: str) -> Counter:
    return _shed.labels(model_name(model), class_name(priority), tenant, reason)


def _remove_tenant(tenant: str) -> None:
    for each in (_tenant_wait, _shed):
        each.remove_by_labels({TENANT: tenant})
    for cache in (_waits_of, _shed_of):
        cache.cache_clear()


_tenants = TenantLabels(_remove_tenant)


def record_leased(ticket: QueuedTicket) -> None:
    waits = _waits_of(ticket.model, ticket.priority, _tenants.record(ticket.tenant_id))
    waits.wait.observe(ticket.waited, exemplar_in(ticket.traceparent))
    waits.of_tenant.observe(ticket.waited)
    if ticket.predicted_wait < 0:  # not predicted
        return
    waits.predicted.observe(ticket.predicted_wait)
    if ticket.was_predicted_to_wait:
        lateness = ticket.waited - ticket.predicted_wait
        (waits.late if lateness > 0 else waits.early).observe(abs(lateness))


def record_shed(shed: Shed, models: Container[str]) -> None:
    """Count a rejection. Its labels are empty if the ticket is not known: it was invalid, or has been leased.

    `models`: those that have a queue. Other names are no labels.
    """
    ticket = shed.ticket
    if ticket is None:
        _shed.labels("", "", "", shed.error.reason).inc()
        return
    model = ticket.model if ticket.model in models else ""
    _shed_of(model, ticket.priority, _tenants.record(ticket.tenant_id), shed.error.reason).inc()


def observations(book: TicketBook, edges: int, schedulers: int) -> Iterator[Observation]:
    """Yield the values of a shard. `edges` and `schedulers`: connected streams."""
    yield from _depths(book)
    yield Observation(series.OFFERED, book.offered)
    yield Observation(series.RUNNING, len(book.accounting))
    credit, rates = Totals[str](), Totals[str]()
    for queue in book.model_queues:  # one for each version of a model
        credit[model_name(queue.model)] += book.schedulers.credit_for(queue.model)
        rates[model_name(queue.model)] += round(queue.forecast.service_rate.saturated)
    for model, tickets in credit.items():
        yield Observation(series.CREDIT, tickets, (model,))
        yield Observation(series.TOKENS_PER_SECOND, rates[model], (model,))
    yield Observation(series.PEERS, edges, ("edge",))
    yield Observation(series.PEERS, schedulers, ("scheduler",))


def _depths(book: TicketBook) -> Iterator[Observation]:
    """Yield tickets and tokens, and 0 for the classes of a model without tickets, as absent values end a graph."""
    tickets, tokens = Totals[tuple[str, str, str]](), Totals[tuple[str, str, str]]()
    for queue in book.model_queues:
        for priority in CLASSES:
            tickets[model_name(queue.model), class_name(priority), ""] += 0
    for (model, priority, tenant), totals in book.model_queues.totals_by_tenant.items():
        labels = (model_name(model), class_name(priority), _tenants.label_of(tenant))
        tickets[labels] += totals.tickets
        tokens[labels] += totals.tokens
    for labels, count in tickets.items():
        yield Observation(series.DEPTH, count, labels)
        yield Observation(series.TOKENS, tokens[labels], labels)
