"""Traces and metrics of one process: OpenTelemetry providers, and spans with an explicit parent.

No span is ever *current*, because a handler's generator may be closed in a different context than it ran in. The parent
of a span is passed as a W3C traceparent, which frames carry, too. The code that starts a span ends it.
"""

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from wsgiref.simple_server import WSGIServer

import structlog
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from prometheus_client import start_http_server

from penstock.chassis.ids import new_span_id, new_trace_id
from penstock.chassis.observability import semconv
from penstock.chassis.observability.logs import configure_logs

log = structlog.get_logger()

INSTRUMENTATION_SCOPE = "penstock"
EXPORT_TIMEOUT_S = 2.0  # an unreachable receiver must not delay the end of the process

# W3C Trace Context, section 3.2: trace, span and flags, in lower-case hexadecimal.
_TRACEPARENT_V0 = re.compile("00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_UNSAMPLED = frozenset("02468ace")  # last digit of a traceparent: bit 0 of its flags
_propagator = TraceContextTextMapPropagator()

# Trace context of the current call; set by the server's interceptor, read by code that calls other processes.
current_traceparent: ContextVar[str] = ContextVar("current_traceparent", default="")


@dataclass
class Telemetry:
    """The providers that `configure` opened; `shutdown` exports the rest and closes them."""

    traces: TracerProvider
    meters: MeterProvider
    metrics_server: WSGIServer | None = field(default=None)

    def shutdown(self) -> None:
        self.traces.shutdown()
        self.meters.shutdown(timeout_millis=EXPORT_TIMEOUT_S * 1000)
        if self.metrics_server:
            self.metrics_server.shutdown()
            self.metrics_server.server_close()


def configure(
    tier: str,
    instance_id: str,
    *,
    otlp_endpoint: str = "",
    metrics_listen: str = "",
    log_level: str = "info",
) -> Telemetry:
    """Configure logs, traces and metrics of the process; called once."""
    configure_logs(log_level, tier=tier, instance_id=instance_id)
    return open_telemetry(tier, instance_id, otlp_endpoint=otlp_endpoint, metrics_listen=metrics_listen)


def open_telemetry(tier: str, instance_id: str, *, otlp_endpoint: str = "", metrics_listen: str = "") -> Telemetry:
    """Install the process's tracer and meter providers; called once.

    otlp_endpoint:  http://host:port or host:port of an OTLP/gRPC receiver; empty: no export.
    metrics_listen: host:port that serves /metrics; empty: none.
    """
    resource = _resource(tier, instance_id)
    telemetry = Telemetry(_traces(resource, otlp_endpoint), _meters(resource, otlp_endpoint, metrics_listen))
    trace.set_tracer_provider(telemetry.traces)
    metrics.set_meter_provider(telemetry.meters)
    if metrics_listen:
        telemetry.metrics_server = _serve_metrics(metrics_listen)
    return telemetry


def tracer() -> trace.Tracer:
    return _tracer_of(trace.get_tracer_provider())


@lru_cache(maxsize=2)  # get_tracer costs as much as two spans
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer(INSTRUMENTATION_SCOPE)


def meter() -> metrics.Meter:
    """The process's meter; instruments made before `configure` start to record with it."""
    return metrics.get_meter(INSTRUMENTATION_SCOPE)


def start_span(
    name: str,
    traceparent: str = "",
    *,
    attributes: Mapping[str, AttributeValue] | None = None,
    start_time: int | None = None,  # unix ns; None: now
    kind: SpanKind = SpanKind.INTERNAL,
) -> Span:
    """Start a span below `traceparent`, or a new trace if that is empty or malformed. End it with `.end()`."""
    parent = _parent(traceparent) if traceparent else Context()
    return tracer().start_span(name, parent, kind=kind, attributes=attributes, start_time=start_time)


def records_spans() -> bool:
    """Whether any span of this process is recorded. False without an exporter."""
    return getattr(trace.get_tracer_provider(), "sampler", None) is not ALWAYS_OFF


def unrecorded_traceparent(traceparent: str) -> str:
    """Return the traceparent of a child of `traceparent` that is not recorded, or of a new trace, without any span."""
    trace_id = trace_id_of(traceparent) if traceparent else ""
    return f"00-{trace_id or new_trace_id()}-{new_span_id()}-00"


def is_recorded(traceparent: str) -> bool:
    """Whether a span below `traceparent` is recorded; False if the root of the trace is not sampled."""
    return traceparent[-1:] not in _UNSAMPLED


def _parent(traceparent: str) -> Context:
    plain = _TRACEPARENT_V0.fullmatch(traceparent)
    if plain is None:  # the propagator takes five times as long and accepts later versions
        return _propagator.extract({"traceparent": traceparent}, context=Context())
    flags = TraceFlags(int(plain[3], 16))
    parent = SpanContext(int(plain[1], 16), int(plain[2], 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())


def traceparent_of(span: Span) -> str:
    """W3C traceparent of a child of `span`."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def trace_id_of(traceparent: str) -> str:
    """The 32 hex digits of the trace; empty if `traceparent` is malformed."""
    if plain := _TRACEPARENT_V0.fullmatch(traceparent):  # the usual case; the propagator takes 20 times as long
        return plain[1]
    context = trace.get_current_span(_propagator.extract({"traceparent": traceparent}, context=Context()))
    found = context.get_span_context().trace_id
    return f"{found:032x}" if found else ""


def _resource(tier: str, instance_id: str) -> Resource:
    names: dict[str, AttributeValue] = {
        semconv.SERVICE_NAME: f"penstock-{tier}",
        semconv.SERVICE_NAMESPACE: "penstock",
        semconv.SERVICE_INSTANCE_ID: instance_id,
        semconv.SERVICE_VERSION: version("penstock"),
        "process.pid": os.getpid(),
    }
    return Resource.create(names)


def _traces(resource: Resource, endpoint: str) -> TracerProvider:
    if not endpoint:  # ids are still made, for logs and timelines
        return TracerProvider(resource=resource, sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # sampler from OTEL_TRACES_SAMPLER
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https"), timeout=EXPORT_TIMEOUT_S)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _meters(resource: Resource, endpoint: str, metrics_listen: str) -> MeterProvider:
    readers: list[MetricReader] = []
    if endpoint:
        insecure = not endpoint.startswith("https")
        exporter = OTLPMetricExporter(endpoint=endpoint, insecure=insecure, timeout=EXPORT_TIMEOUT_S)
        readers.append(PeriodicExportingMetricReader(exporter))
    if metrics_listen:
        readers.append(PrometheusMetricReader())
    return MeterProvider(resource=resource, metric_readers=readers, shutdown_on_exit=False)


def _serve_metrics(listen: str) -> WSGIServer:
    host, _, port = listen.rpartition(":")
    server, _thread = start_http_server(int(port), addr=host.strip("[]"))
    log.info("metrics_listening", address=f"{host}:{server.server_port}")
    return server
