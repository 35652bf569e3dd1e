"""Opens the telemetry of one process: logs, metrics and the recorder of its spans.

No span is ever *current*, because a handler's generator may be closed in a different context than it ran in. The parent
of a span is passed as a W3C traceparent, which frames carry, too.
"""

import os
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from wsgiref.simple_server import WSGIServer

import structlog
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import AttributeValue
from prometheus_client import start_http_server

from penstock.chassis.observability import semconv
from penstock.chassis.observability.logs import configure_logs
from penstock.chassis.observability.metrics import REGISTRY
from penstock.chassis.observability.otlp_metrics import OtlpMetrics
from penstock.chassis.observability.spans import (
    INSTRUMENTATION_SCOPE,
    SpanRecorder,
    install_recorder,
    open_recorder,
)

log = structlog.get_logger()

EXPORT_TIMEOUT_S = 2.0  # an unreachable receiver must not delay the end of the process

# Trace context of the current call, valid or empty; set by the server's interceptor.
current_traceparent: ContextVar[str] = ContextVar("current_traceparent", default="")


@dataclass
class Telemetry:
    """What `configure` opened; `shutdown` exports the rest and closes it."""

    spans: SpanRecorder | None  # None without an exporter
    metrics: OtlpMetrics | None = None  # as above
    metrics_server: WSGIServer | None = field(default=None)

    def shutdown(self) -> None:
        install_recorder(None)
        if self.spans:
            self.spans.shutdown()
        if self.metrics:
            self.metrics.shutdown(EXPORT_TIMEOUT_S)
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
    """Install the process's recorder of spans and the export of its metrics; called once. Raises SamplerInvalid.

    otlp_endpoint:  http://host:port or host:port of an OTLP/gRPC receiver; empty: no export.
    metrics_listen: host:port that serves /metrics; empty: none.
    """
    resource = _resource(tier, instance_id)
    spans = open_recorder(resource, otlp_endpoint, EXPORT_TIMEOUT_S) if otlp_endpoint else None
    telemetry = Telemetry(spans, _metrics(resource, otlp_endpoint))
    install_recorder(spans)
    REGISTRY.set_target_info({name.replace(".", "_"): str(value) for name, value in resource.attributes.items()})
    if metrics_listen:
        telemetry.metrics_server = _serve_metrics(metrics_listen)
    return telemetry


def _resource(tier: str, instance_id: str) -> Resource:
    names: dict[str, AttributeValue] = {
        semconv.SERVICE_NAME: f"penstock-{tier}",
        semconv.SERVICE_NAMESPACE: "penstock",
        semconv.SERVICE_INSTANCE_ID: instance_id,
        semconv.SERVICE_VERSION: version("penstock"),
        "process.pid": os.getpid(),
    }
    return Resource.create(names)


def _metrics(resource: Resource, endpoint: str) -> OtlpMetrics | None:
    if not endpoint:
        return None
    insecure = not endpoint.startswith("https")
    exporter = OTLPMetricExporter(endpoint=endpoint, insecure=insecure, timeout=EXPORT_TIMEOUT_S)
    return OtlpMetrics(REGISTRY, exporter, resource, InstrumentationScope(INSTRUMENTATION_SCOPE))


def _serve_metrics(listen: str) -> WSGIServer:
    host, _, port = listen.rpartition(":")
    server, _thread = start_http_server(int(port), addr=host.strip("[]"), registry=REGISTRY)
    log.info("metrics_listening", address=f"{host}:{server.server_port}")
    return server
