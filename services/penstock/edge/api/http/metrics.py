"""Telemetry of HTTP requests: one histogram of durations by route and status, and a span of each request."""

import time
from functools import lru_cache, partial

from opentelemetry.util.types import AttributeValue
from prometheus_client import Histogram

from penstock.chassis.errors import Overloaded
from penstock.chassis.observability import semconv
from penstock.chassis.observability.deferred import defer
from penstock.chassis.observability.metrics import exemplar_in, histogram
from penstock.chassis.observability.spans import SERVER, keeps_call, record_span
from penstock.edge.api.http.exchange import Exchange
from penstock.edge.series import HTTP_DURATION

KNOWN_METHODS = frozenset({"GET", "HEAD", "POST"})
OTHER_METHOD = "_OTHER"  # by the OpenTelemetry convention; callers must not create labels
CLIENT_DISCONNECTED = "client_disconnected"

_duration = histogram(HTTP_DURATION)


@lru_cache(maxsize=512)  # methods times routes times statuses
def _duration_of(method: str, route: str, status: str, error: str) -> Histogram:
    return _duration.labels(method, route, status, error)


def record_request(exchange: Exchange, seconds: float, *, is_disconnected: bool) -> None:
    """Record an exchange that has ended. Its route is empty for an unknown path, which callers must not make labels."""
    defer(partial(_record, exchange, seconds, time.time_ns(), is_disconnected))


def _record(exchange: Exchange, seconds: float, ended_ns: int, is_disconnected: bool) -> None:
    status = exchange.status  # 0 if the client disconnected before the response
    method = exchange.method if exchange.method in KNOWN_METHODS else OTHER_METHOD
    labels: dict[str, AttributeValue] = {semconv.HTTP_REQUEST_METHOD: method}
    if exchange.route:
        labels[semconv.HTTP_ROUTE] = exchange.route
    if status:
        labels[semconv.HTTP_RESPONSE_STATUS_CODE] = status
    if is_disconnected or status >= 500:
        labels[semconv.ERROR_TYPE] = CLIENT_DISCONNECTED if is_disconnected else str(status)
    error = str(labels.get(semconv.ERROR_TYPE, ""))
    measured = _duration_of(method, exchange.route, str(status) if status else "", error)
    measured.observe(seconds, exemplar_in(exchange.traceparent))
    if exchange.began_ns and keeps_call(exchange.traceparent, failed=exchange.failure is not None):
        _record_span(exchange, f"{method} {exchange.route}", labels, exchange.ended_ns or ended_ns)


def _record_span(exchange: Exchange, name: str, labels: dict[str, AttributeValue], ended_ns: int) -> None:
    """Record the exchange's span, which ends when the last bytes of the response are written."""
    failure, is_fault = exchange.failure, exchange.status >= 500
    attributes: dict[str, AttributeValue] = {**labels, semconv.PENSTOCK_REQUEST_ID: exchange.request_id}
    if failure:
        attributes[semconv.PENSTOCK_REASON] = failure.reason
        is_fault = is_fault or isinstance(failure, Overloaded)  # samplers see load that was shed
    record_span(
        name,
        exchange.parent,
        exchange.began_ns,
        ended_ns,
        attributes,
        own=exchange.traceparent,
        kind=SERVER,
        error=(failure.reason if failure else str(exchange.status)) if is_fault else "",
    )
