"""One server's calls: how many are under way, and a span and a duration for each that is observed."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from penstock.chassis import semconv
from penstock.chassis.afterwards import afterwards
from penstock.chassis.telemetry import meter, start_span, traceparent_of

# On a server span only these are faults of ours; the others are the caller's.
SERVER_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})

_duration = meter().create_histogram(
    semconv.RPC_SERVER_CALL_DURATION,
    unit="s",
    description="Duration of inbound calls.",
    explicit_bucket_boundaries_advisory=list(semconv.RPC_DURATION_BUCKETS),
)


@dataclass
class Calls:
    """Calls under way on one server. Operations (probes, admin, debugging) are not work."""

    working: int = 0
    operating: int = 0
    is_idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.is_idle.set()

    @contextmanager
    def counted(self, *, is_work: bool) -> Iterator[None]:
        self.working += is_work
        self.operating += not is_work
        if is_work:
            self.is_idle.clear()
        try:
            yield
        finally:
            self.working -= is_work
            self.operating -= not is_work
            if not self.working:
                self.is_idle.set()


@dataclass
class CallRecord:
    """What is measured of one call; `end` once with the name of its status."""

    method: str  # package.Service/Method
    traceparent: str  # of the caller, then of our span
    is_observed: bool
    started: float = field(default_factory=time.perf_counter)  # s
    span: Span | None = None

    def __post_init__(self) -> None:
        if self.is_observed:
            attributes = {semconv.RPC_SYSTEM_NAME: "grpc", semconv.RPC_METHOD: self.method}
            self.span = start_span(self.method, self.traceparent, attributes=attributes, kind=SpanKind.SERVER)
            self.traceparent = traceparent_of(self.span)

    def end(self, code: str, *, reason: str = "") -> None:
        if self.span:
            took = time.perf_counter() - self.started
            afterwards(partial(self._tell, self.span, code, reason, took, time.time_ns()))

    def _tell(self, span: Span, code: str, reason: str, took: float, ended: int) -> None:
        attributes = {semconv.RPC_RESPONSE_STATUS_CODE: code}
        if code in SERVER_FAULTS:
            attributes[semconv.ERROR_TYPE] = code
            span.set_status(Status(StatusCode.ERROR, reason or code))
        if reason:
            span.set_attribute(semconv.PENSTOCK_REASON, reason)
        span.set_attributes(attributes)
        span.end(ended)
        labels = {semconv.RPC_SYSTEM_NAME: "grpc", semconv.RPC_METHOD: self.method, **attributes}
        _duration.record(took, labels)
