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
UNBOUNDED = 2**31 - 1  # Envoy's default would reject the 1,025th stream; the edge, not the proxy, sheds load


def grpc_cluster(name: str, *, keepalive_interval: timedelta, secrets: str = "") -> Resource:
    """HTTP/2 to the edges' gRPC port, with pings so that a frozen edge does not hold its streams for ever."""
    ping = core.KeepaliveSettings(interval=keepalive_interval, timeout=keepalive_interval)
    http2 = core.Http2ProtocolOptions(connection_keepalive=ping)
    check = _check(grpc=core.HealthCheckGrpcHealthCheck())
    protocol = upstreams.HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)
    return _cluster(name, check, protocol, mutual_tls(secrets, "edge", alpn="h2") if secrets else None)


def http_cluster(name: str, *, secrets: str = "") -> Resource:
    """HTTP/1.1 to the edges' OpenAI port."""
    check = _check(http=core.HealthCheckHttpHealthCheck(path="/health"))
    http1 = core.Http1ProtocolOptions()
    protocol = upstreams.HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=http1)
    return _cluster(name, check, protocol, mutual_tls(secrets, "edge", alpn="http/1.1") if secrets else None)


def _cluster(
    name: str,
    check: core.HealthCheck,
    protocol: upstreams.HttpProtocolOptionsExplicitHttpConfig,
    transport: core.TransportSocket | None,
) -> Resource:
    options = upstreams.HttpProtocolOptions(
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=CONNECTION_IDLE_TIMEOUT),
        explicit_http_config=protocol,
    )
    message = cluster.Cluster(
        name=name,
        type=cluster.ClusterDiscoveryType.EDS,
        eds_cluster_config=cluster.ClusterEdsClusterConfig(eds_config=ads_config_source()),
        connect_timeout=CONNECT_TIMEOUT,
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,  # streams differ in length, so round robin would pile them up
        health_checks=[check],
        circuit_breakers=_limits(),
        outlier_detection=_outliers(),
        common_lb_config=_balancing(),
        ignore_health_on_host_removal=True,  # otherwise a removed edge gets calls while its check passes
        typed_extension_protocol_options={HTTP_OPTIONS: pack_any(options)},
        transport_socket=transport,
    )
    return Resource(
        type=ResourceType.CLUSTER,
        name=name,
        body=bytes(message),
        references=frozenset({(ResourceType.ENDPOINT, name)}),
    )


def ads_config_source() -> core.ConfigSource:
    return core.ConfigSource(ads=core.AggregatedConfigSource(), resource_api_version=core.ApiVersion.V3)


def pack_any(message: Message) -> Any:
    return Any.pack(message)


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


def _balancing() -> cluster.ClusterCommonLbConfig:
    return cluster.ClusterCommonLbConfig(
        healthy_panic_threshold=units.Percent(value=0.0),  # without a healthy edge, fail at once
        ignore_new_hosts_until_first_hc=True,  # otherwise new edges count as unhealthy and move calls to other regions
        update_merge_window=timedelta(0),  # otherwise a health change takes effect after 1 s
    )


def _outliers() -> cluster.OutlierDetection:
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


def _limits() -> cluster.CircuitBreakers:
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
