"""Calls of one server: the number in flight, and a span and a duration for each observed call."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from penstock.chassis.observability import semconv
from penstock.chassis.observability.deferred import defer
from penstock.chassis.observability.telemetry import meter, start_span, traceparent_of

# Statuses that are errors of the server; on a server span, all others are errors of the caller.
SERVER_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})

_duration = meter().create_histogram(
    semconv.RPC_SERVER_CALL_DURATION,
    unit="s",
    description="Duration of inbound calls.",
    explicit_bucket_boundaries_advisory=list(semconv.RPC_DURATION_BUCKETS),
)


@dataclass
class CallCounter:
    """Calls in flight on one server. Calls of operators (probes, admin, debugging) do not count as work."""

    in_flight: int = 0
    operator_calls: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @contextmanager
    def count(self, *, is_work: bool) -> Iterator[None]:
        self.in_flight += is_work
        self.operator_calls += not is_work
        if is_work:
            self.idle.clear()
        try:
            yield
        finally:
            self.in_flight -= is_work
            self.operator_calls -= not is_work
            if not self.in_flight:
                self.idle.set()


@dataclass
class CallMetrics:
    """Span and duration of one call. `end` is called once, with the name of its status."""

    method: str  # package.Service/Method
    traceparent: str  # the caller's, then that of our span
    is_observed: bool
    started_at: float = field(default_factory=time.perf_counter)  # s
    span: Span | None = None

    def __post_init__(self) -> None:
        if self.is_observed:
            attributes = {semconv.RPC_SYSTEM_NAME: "grpc", semconv.RPC_METHOD: self.method}
            self.span = start_span(self.method, self.traceparent, attributes=attributes, kind=SpanKind.SERVER)
            self.traceparent = traceparent_of(self.span)

    def end(self, code: str, *, reason: str = "") -> None:
        if self.span:
            duration_s = time.perf_counter() - self.started_at
            defer(partial(self._export, self.span, code, reason, duration_s, time.time_ns()))

    def _export(self, span: Span, code: str, reason: str, duration_s: float, ended_ns: int) -> None:
        attributes = {semconv.RPC_RESPONSE_STATUS_CODE: code}
        if code in SERVER_FAULTS:
            attributes[semconv.ERROR_TYPE] = code
            span.set_status(Status(StatusCode.ERROR, reason or code))
        if reason:
            span.set_attribute(semconv.PENSTOCK_REASON, reason)
        span.set_attributes(attributes)
        span.end(ended_ns)
        labels = {semconv.RPC_SYSTEM_NAME: "grpc", semconv.RPC_METHOD: self.method, **attributes}
        _duration.record(duration_s, labels)
