"""A real OTLP/gRPC receiver that tests read spans and metrics back from, as an exporter's own report proves nothing."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from penstock.chassis.observability.deferred import deferred_calls

TIMEOUT_S = 20.0  # s; longer than an exporter's schedule


@dataclass(frozen=True)
class ReceivedSpan:
    """One received span. Ids are hexadecimal."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: root
    kind: str  # SERVER, INTERNAL, ..
    status: str  # UNSET, OK, ERROR
    start_unix_nano: int
    end_unix_nano: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    status_message: str
    events: tuple[tuple[str, int, dict[str, Any]], ...]  # name, Unix ns, attributes
    links: tuple[tuple[str, str], ...]  # trace and span id
    schema_url: str


@dataclass
class Receiver(TraceServiceServicer, MetricsServiceServicer):
    """Everything that was exported to `endpoint`. Safe to read from any thread."""

    endpoint: str = ""
    _spans: list[ReceivedSpan] = field(default_factory=list)
    _metrics: dict[str, Any] = field(default_factory=dict)
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def Export(self, request, context):
        with self._arrived:
            if isinstance(request, ExportTraceServiceRequest):
                self._spans += spans_in(request)
                answer = ExportTraceServiceResponse()
            else:
                assert isinstance(request, ExportMetricsServiceRequest)
                self._metrics |= metrics_in(request)
                answer = ExportMetricsServiceResponse()
            self._arrived.notify_all()
        return answer

    def spans(self, *, trace_id: str = "", name: str = "") -> list[ReceivedSpan]:
        """Spans so far, by start; only of the given trace and name if these are set."""
        with self._arrived:
            found = [each for each in self._spans if trace_id in ("", each.trace_id) and name in ("", each.name)]
        return sorted(found, key=lambda each: each.start_unix_nano)

    def wait_for_spans(self, *names: str, trace_id: str = "") -> list[ReceivedSpan]:
        """Spans of the trace once each of `names` is among them; fails, naming what is missing."""
        run_deferred_calls()
        with self._arrived:
            arrived = self._arrived.wait_for(lambda: not self._missing(names, trace_id), timeout=TIMEOUT_S)
            missing = self._missing(names, trace_id)
        assert arrived, (
            f"no span {sorted(missing)} arrived within {TIMEOUT_S} s; there are {self.spans(trace_id=trace_id)}"
        )
        return self.spans(trace_id=trace_id)

    def wait_for_metric(self, name: str, until: Callable[[Any], bool] = lambda _: True) -> Any:
        """The newest state of a metric, as its protobuf message, once it meets `until`."""
        run_deferred_calls()
        with self._arrived:
            has_arrived = self._arrived.wait_for(
                lambda: name in self._metrics and until(self._metrics[name]), timeout=TIMEOUT_S
            )
            assert has_arrived, f"no such metric {name} arrived; there is {self._metrics.get(name)}"
            return self._metrics[name]

    def wait_for_export(self) -> None:
        """Return after the next export of any kind."""
        with self._arrived:
            assert self._arrived.wait(timeout=TIMEOUT_S), f"nothing was exported within {TIMEOUT_S} s"

    def _missing(self, names: tuple[str, ...], trace_id: str) -> set[str]:
        return set(names) - {each.name for each in self._spans if trace_id in ("", each.trace_id)}


def run_deferred_calls() -> None:
    """A test that waits here must let the loop run the deferred calls; another thread need not."""
    with suppress(RuntimeError):
        deferred_calls().flush()


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A receiver on a free port of loopback, for this process or for others."""
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    receiver = Receiver()
    add_TraceServiceServicer_to_server(receiver, server)
    add_MetricsServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(grace=None).wait()


def spans_in(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for group in request.resource_spans:
        resource = attributes_of(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                events = [(each.name, each.time_unix_nano, attributes_of(each.attributes)) for each in span.events]
                yield ReceivedSpan(
                    name=span.name,
                    service=resource["service.name"],
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    status=span.status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
                    start_unix_nano=span.start_time_unix_nano,
                    end_unix_nano=span.end_time_unix_nano,
                    attributes=attributes_of(span.attributes),
                    resource=resource,
                    status_message=span.status.message,
                    events=tuple(events),
                    links=tuple((each.trace_id.hex(), each.span_id.hex()) for each in span.links),
                    schema_url=scope.schema_url,
                )


def metrics_in(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    groups = [scope for group in request.resource_metrics for scope in group.scope_metrics]
    return {metric.name: metric for scope in groups for metric in scope.metrics}


def attributes_of(pairs: list[KeyValue]) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
