"""Cluster resources: how a proxy connects to the edges, checks their health and ejects them."""

from datetime import timedelta

from betterproto2 import Message
from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstreams
from envoy_data_plane.envoy.type import v3 as units
from envoy_data_plane.google.protobuf import Any

from penstock.routing.resources.transport_sockets import mutual_tls
from penstock.routing.resources.types import Resource, ResourceType

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
CONNECT_TIMEOUT = timedelta(seconds=1)
HEALTH_CHECK_INTERVAL = timedelta(seconds=1)
CONNECTION_IDLE_TIMEOUT = timedelta(hours=1)
STREAMS_PER_UPSTREAM_CONNECTION = 100  # beyond them the proxy opens another connection to the same edge
MAX_OUTBOUND_FRAMES = 1_000_000  # waiting to be written; a reset is 13 bytes, and an edge that stops reading is pinged
UNBOUNDED = 2**31 - 1  # Envoy's default would reject the 1,025th stream; the edge, not the proxy, sheds load


def grpc_cluster(name: str, *, keepalive_interval: timedelta, secrets: str = "", endpoints: str = "") -> Resource:
    """HTTP/2 to the edges' gRPC port, with pings so that a frozen edge does not hold its streams for ever.

    `endpoints` names the resource with the edges, if it is that of another cluster.
    """
    transport = mutual_tls(secrets, "edge", alpn="h2") if secrets else None
    return _cluster(name, grpc_health_check(), http2_upstream(keepalive_interval), transport, endpoints or name)


def http2_upstream(keepalive_interval: timedelta) -> upstreams.HttpProtocolOptionsExplicitHttpConfig:
    """HTTP/2 whose connections are shared by the calls of many clients, so that no client may make the proxy close one.

    A client that resets calls makes the proxy write as many resets here. By default the proxy closes the connection,
    with the streams of all clients on it, if 1,000 of them wait to be written.
    """
    http2 = core.Http2ProtocolOptions(
        max_concurrent_streams=STREAMS_PER_UPSTREAM_CONNECTION,
        max_outbound_frames=MAX_OUTBOUND_FRAMES,
        max_outbound_control_frames=MAX_OUTBOUND_FRAMES,
        connection_keepalive=core.KeepaliveSettings(interval=keepalive_interval, timeout=keepalive_interval),
    )
    return upstreams.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)


def http_cluster(name: str, *, secrets: str = "") -> Resource:
    """HTTP/1.1 to the edges' OpenAI port."""
    transport = mutual_tls(secrets, "edge", alpn="http/1.1") if secrets else None
    return _cluster(name, http_health_check(), http1_upstream(), transport, name)


def http1_upstream() -> upstreams.HttpProtocolOptionsExplicitHttpConfig:
    return upstreams.HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=core.Http1ProtocolOptions())


def upstream_options(protocol: upstreams.HttpProtocolOptionsExplicitHttpConfig) -> upstreams.HttpProtocolOptions:
    return upstreams.HttpProtocolOptions(
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=CONNECTION_IDLE_TIMEOUT),
        explicit_http_config=protocol,
    )


def _cluster(
    name: str,
    check: core.HealthCheck,
    protocol: upstreams.HttpProtocolOptionsExplicitHttpConfig,
    transport: core.TransportSocket | None,
    endpoints: str,
) -> Resource:
    message = cluster.Cluster(
        name=name,
        type=cluster.ClusterDiscoveryType.EDS,
        eds_cluster_config=cluster.ClusterEdsClusterConfig(
            eds_config=ads_config_source(), service_name=endpoints if endpoints != name else ""
        ),
        connect_timeout=CONNECT_TIMEOUT,
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,  # streams differ in length, so round robin would pile them up
        health_checks=[check],
        circuit_breakers=stream_limits(),
        outlier_detection=local_origin_outliers(),
        common_lb_config=only_healthy_hosts(),
        ignore_health_on_host_removal=True,  # otherwise a removed edge gets calls while its check passes
        typed_extension_protocol_options={HTTP_OPTIONS: pack_any(upstream_options(protocol))},
        transport_socket=transport,
    )
    return Resource(
        type=ResourceType.CLUSTER,
        name=name,
        body=bytes(message),
        references=frozenset({(ResourceType.ENDPOINT, endpoints)}),
    )


def ads_config_source() -> core.ConfigSource:
    return core.ConfigSource(ads=core.AggregatedConfigSource(), resource_api_version=core.ApiVersion.V3)


def pack_any(message: Message) -> Any:
    return Any.pack(message)


def grpc_health_check() -> core.HealthCheck:
    return _check(grpc=core.HealthCheckGrpcHealthCheck())


def http_health_check() -> core.HealthCheck:
    return _check(http=core.HealthCheckHttpHealthCheck(path="/health"))


def _check(
    *, grpc: core.HealthCheckGrpcHealthCheck | None = None, http: core.HealthCheckHttpHealthCheck | None = None
) -> core.HealthCheck:
    return core.HealthCheck(
        grpc_health_check=grpc,
        http_health_check=http,
        timeout=HEALTH_CHECK_INTERVAL,
        interval=HEALTH_CHECK_INTERVAL,
        unhealthy_threshold=2,
        healthy_threshold=1,
        # Without these two, an idle cluster is checked once a minute.
        no_traffic_interval=HEALTH_CHECK_INTERVAL,
        no_traffic_healthy_interval=HEALTH_CHECK_INTERVAL,
    )


def only_healthy_hosts() -> cluster.ClusterCommonLbConfig:
    return cluster.ClusterCommonLbConfig(
        healthy_panic_threshold=units.Percent(value=0.0),  # without a healthy edge, fail at once
        ignore_new_hosts_until_first_hc=True,  # otherwise new edges count as unhealthy and move calls to other regions
        update_merge_window=timedelta(0),  # otherwise a health change takes effect after 1 s
    )


def local_origin_outliers() -> cluster.OutlierDetection:
    """Eject on what the network did, never on what an edge answered: one poisoned call must not cost a healthy edge."""
    return cluster.OutlierDetection(
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=3,
        enforcing_consecutive_local_origin_failure=100,
        enforcing_local_origin_success_rate=0,
        enforcing_consecutive_5xx=0,
        enforcing_consecutive_gateway_failure=0,
        enforcing_success_rate=0,
        interval=timedelta(seconds=1),
        base_ejection_time=timedelta(seconds=2),
        max_ejection_time=timedelta(seconds=30),
        max_ejection_percent=50,
    )


def stream_limits() -> cluster.CircuitBreakers:
    budget = cluster.CircuitBreakersThresholdsRetryBudget(
        budget_percent=units.Percent(value=20.0), min_retry_concurrency=3
    )
    thresholds = cluster.CircuitBreakersThresholds(
        max_connections=UNBOUNDED,
        max_pending_requests=UNBOUNDED,
        max_requests=UNBOUNDED,
        retry_budget=budget,
    )
    return cluster.CircuitBreakers(thresholds=[thresholds])
