"""Calls of one server: the number in flight, and a span and a duration for each observed call."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, partial

from prometheus_client import Histogram

from penstock.chassis.errors import Overloaded, PenstockError
from penstock.chassis.observability import semconv
from penstock.chassis.observability.deferred import defer
from penstock.chassis.observability.metrics import exemplar_in, histogram
from penstock.chassis.observability.series import RPC_DURATION
from penstock.chassis.observability.spans import SERVER, keeps_call, open_span, record_span
from penstock.chassis.observability.telemetry import current_traceparent
from penstock.chassis.observability.trace_context import TRACE_ID, traceparent_or_empty

# Statuses that are errors of the server; on a server span, all others are errors of the caller.
SERVER_FAULTS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})

_duration = histogram(RPC_DURATION)


@lru_cache(maxsize=256)  # methods times statuses
def _duration_of(method: str, code: str) -> Histogram:
    return _duration.labels("grpc", method, code, code if code in SERVER_FAULTS else "")


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
    parent: str  # traceparent of the caller, valid or empty
    is_observed: bool
    started_at: float = field(default_factory=time.perf_counter)  # s
    traceparent: str = ""  # of our span; that of the caller if the call is not observed
    began_ns: int = 0  # Unix
    transport_parent: str = ""  # traceparent of the call's metadata, if its message named another trace

    def __post_init__(self) -> None:
        self.began_ns = time.time_ns()
        self.traceparent = open_span(self.parent) if self.is_observed else self.parent

    def continue_trace(self, given: str) -> str:
        """Continue the trace that the call's message names, if it does. Returns the traceparent of our span."""
        parent = traceparent_or_empty(given)
        if parent and parent[TRACE_ID] != self.traceparent[TRACE_ID]:
            self.parent, self.transport_parent = parent, self.parent
            self.traceparent = open_span(parent)
            current_traceparent.set(self.traceparent)
        return self.traceparent

    def end(self, code: str, error: PenstockError | None = None) -> None:
        if self.is_observed:
            duration_s = time.perf_counter() - self.started_at
            defer(partial(self._record, code, error, duration_s, time.time_ns()))
        elif error and self.parent:  # a session that was rejected or failed
            self.traceparent = open_span(self.parent)
            defer(partial(self._record_span, code, error, time.time_ns()))

    def _record(self, code: str, error: PenstockError | None, duration_s: float, ended_ns: int) -> None:
        _duration_of(self.method, code).observe(duration_s, exemplar_in(self.traceparent))
        self._record_span(code, error, ended_ns)

    def _attributes(self, code: str) -> dict[str, str]:
        attributes = {
            semconv.RPC_SYSTEM_NAME: "grpc",
            semconv.RPC_METHOD: self.method,
            semconv.RPC_RESPONSE_STATUS_CODE: code,
        }
        return {**attributes, semconv.ERROR_TYPE: code} if code in SERVER_FAULTS else attributes

    def _record_span(self, code: str, error: PenstockError | None, ended_ns: int) -> None:
        if not keeps_call(self.traceparent, failed=bool(error) or code in SERVER_FAULTS):
            return
        attributes, reason = self._attributes(code), error.reason if error else ""
        is_fault = code in SERVER_FAULTS or isinstance(error, Overloaded)  # samplers see load that was shed
        record_span(
            self.method,
            self.parent,
            self.began_ns,
            ended_ns,
            {**attributes, semconv.PENSTOCK_REASON: reason} if reason else attributes,
            own=self.traceparent,
            kind=SERVER,
            error=(reason or code) if is_fault else "",
            links=[self.transport_parent] if self.transport_parent else (),
        )


current_call: ContextVar[CallMetrics] = ContextVar("current_call")
