"""Traces of the proxies: a span of each call and of each attempt at an edge, exported over OTLP/gRPC.

A proxy continues the trace of its client and obeys the client's sampling. A call without a trace begins one. The edge
continues the proxy's span.
"""

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.config.trace import v3 as trace
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.extensions.request_id.uuid import v3 as uuid
from envoy_data_plane.envoy.extensions.tracers.opentelemetry.resource_detectors import v3 as detectors
from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstreams
from envoy_data_plane.envoy.type import v3 as units

from penstock.chassis.observability import semconv
from penstock.routing.edges.edge_spec import Address
from penstock.routing.resources.clusters import CONNECT_TIMEOUT, HTTP_OPTIONS, pack_any, upstream_options
from penstock.routing.resources.endpoints import socket_address
from penstock.routing.resources.transport_sockets import server_tls
from penstock.routing.resources.types import Resource, ResourceType

OTLP_PORT = 4317
SERVICE_NAME, SERVICE_NAMESPACE = "penstock-envoy", "penstock"
MAX_CACHED_SPANS = 4_096  # while the collector cannot be reached; later ones are lost
# Names of spans. Paths are not part of them, as clients choose these.
CALL_SPAN, ATTEMPT_SPAN = "envoy.%ROUTE_NAME%", "envoy.upstream"


@dataclass(frozen=True, slots=True)
class Collector:
    """An OTLP/gRPC receiver of the proxies' spans."""

    address: Address
    is_tls: bool = False
    ratio: float = 1.0  # share of the calls without a trace of their client that are sampled

    @classmethod
    def parse(cls, endpoint_url: str, ratio: float) -> Self:
        """Parse `http://host:port`, `https://host:port` or `host:port`. Raises ValueError."""
        parts = urlsplit(endpoint_url if "://" in endpoint_url else f"http://{endpoint_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{endpoint_url!r} is not http://host:port, https://host:port or host:port")
        return cls(Address(parts.hostname, parts.port or OTLP_PORT), parts.scheme == "https", ratio)


def collector_cluster(name: str, collector: Collector) -> Resource:
    """HTTP/2 to the collector. With TLS its name is verified by the authorities of the proxy's system."""
    host = endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=socket_address(collector.address)))
    protocol = upstreams.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=core.Http2ProtocolOptions())
    message = cluster.Cluster(
        name=name,
        type=cluster.ClusterDiscoveryType.STRICT_DNS,
        load_assignment=endpoint.ClusterLoadAssignment(
            cluster_name=name, endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=[host])]
        ),
        connect_timeout=CONNECT_TIMEOUT,
        typed_extension_protocol_options={HTTP_OPTIONS: pack_any(upstream_options(protocol))},
        transport_socket=server_tls(collector.address.host, alpn="h2") if collector.is_tls else None,
    )
    return Resource(type=ResourceType.CLUSTER, name=name, body=bytes(message))


def tracing(collector_name: str, ratio: float) -> hcm.HttpConnectionManagerTracing:
    """Export to the cluster `collector_name`."""
    namespace = detectors.StaticConfigResourceDetectorConfig(attributes={semconv.SERVICE_NAMESPACE: SERVICE_NAMESPACE})
    config = trace.OpenTelemetryConfig(
        grpc_service=core.GrpcService(envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=collector_name)),
        service_name=SERVICE_NAME,
        resource_detectors=[
            core.TypedExtensionConfig(
                name="envoy.tracers.opentelemetry.resource_detectors.static_config", typed_config=pack_any(namespace)
            )
        ],
        max_cache_size=MAX_CACHED_SPANS,
    )
    return hcm.HttpConnectionManagerTracing(
        random_sampling=units.Percent(value=100.0 * ratio),
        spawn_upstream_span=True,  # a gateway is a hop of its own; each attempt at an edge is a span
        operation=CALL_SPAN,
        upstream_operation=ATTEMPT_SPAN,
        provider=trace.TracingHttp(name="envoy.tracers.opentelemetry", typed_config=pack_any(config)),
    )


def plain_request_ids() -> hcm.RequestIdExtension:
    """Leave request ids as they are: by default, Envoy writes the sampling of a trace into ids that are UUIDs."""
    config = uuid.UuidRequestIdConfig(pack_trace_reason=False, use_request_id_for_trace_sampling=False)
    return hcm.RequestIdExtension(typed_config=pack_any(config))
