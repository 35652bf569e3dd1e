"""Metric of HTTP requests: one histogram of durations by route and status."""

from functools import partial

from opentelemetry.util.types import AttributeValue

from penstock.chassis.observability import semconv
from penstock.chassis.observability.deferred import defer
from penstock.chassis.observability.telemetry import meter

KNOWN_METHODS = frozenset({"GET", "HEAD", "POST"})
OTHER_METHOD = "_OTHER"  # by the OpenTelemetry convention; callers must not create labels
CLIENT_DISCONNECTED = "client_disconnected"

_duration = meter().create_histogram(
    semconv.HTTP_SERVER_REQUEST_DURATION,
    unit="s",
    description="Duration of HTTP requests, to the last byte of the response.",
    explicit_bucket_boundaries_advisory=list(semconv.RPC_DURATION_BUCKETS),
)


def record_request(method: str, route: str, status: int, seconds: float, *, is_disconnected: bool) -> None:
    """Record a request. `route` is empty for an unknown path; `status` is 0 if the client disconnected before it."""
    labels: dict[str, AttributeValue] = {
        semconv.HTTP_REQUEST_METHOD: method if method in KNOWN_METHODS else OTHER_METHOD
    }
    if route:
        labels[semconv.HTTP_ROUTE] = route
    if status:
        labels[semconv.HTTP_RESPONSE_STATUS_CODE] = status
    if is_disconnected or status >= 500:
        labels[semconv.ERROR_TYPE] = CLIENT_DISCONNECTED if is_disconnected else str(status)
    defer(partial(_duration.record, seconds, labels))
