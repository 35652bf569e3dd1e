"""Clusters of regions: the region door of each other one, orders in which regions are tried, and auth for others."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.extensions.clusters.aggregate import v3 as aggregate
from envoy_data_plane.envoy.type import v3 as units

from penstock.routing.edges.edge_spec import Address
from penstock.routing.regions.region_spec import Region
from penstock.routing.regions.traffic_plan import Order
from penstock.routing.resources.clusters import (
    CONNECT_TIMEOUT,
    HTTP_OPTIONS,
    grpc_health_check,
    http2_upstream,
    http_health_check,
    local_origin_outliers,
    only_healthy_hosts,
    pack_any,
    stream_limits,
    upstream_options,
)
from penstock.routing.resources.endpoints import ONE_HOST_SUFFICES, socket_address
from penstock.routing.resources.transport_sockets import mutual_tls
from penstock.routing.resources.types import Resource, ResourceType

# A region that dies makes all of its calls retry at once, until health checks have failed.
MIN_CONCURRENT_RETRIES = 1_000


def region_cluster_name(region: str) -> str:
    return f"region_{region}"


def cluster_of(order: Order, *, own: str, own_cluster: str) -> str:
    """Return the cluster that tries the regions of `order`. Names of regions have no underscore."""
    if len(order) > 1:
        return "_".join((own_cluster, *order))
    return own_cluster if order[0] == own else region_cluster_name(order[0])


def region_cluster(region: Region, *, keepalive_interval: timedelta, secrets: str = "") -> Resource:
    """HTTP/2 to the region door of `region`, for gRPC and HTTP. It is healthy while that region can serve."""
    name = region_cluster_name(region.name)
    host = endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=socket_address(region.door)))
    check = http_health_check()
    assert check.http_health_check is not None
    check.http_health_check = replace(check.http_health_check, codec_client_type=units.CodecClientType.HTTP2)
    message = cluster.Cluster(
        name=name,
        type=cluster.ClusterDiscoveryType.STRICT_DNS,
        load_assignment=endpoint.ClusterLoadAssignment(
            cluster_name=name,
            endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=[host])],
            policy=ONE_HOST_SUFFICES,
        ),
        connect_timeout=CONNECT_TIMEOUT,
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,
        health_checks=[check],
        circuit_breakers=stream_limits(),
        outlier_detection=local_origin_outliers(),
        common_lb_config=only_healthy_hosts(),
        typed_extension_protocol_options={HTTP_OPTIONS: pack_any(upstream_options(http2_upstream(keepalive_interval)))},
        transport_socket=mutual_tls(secrets, "envoy", alpn="h2") if secrets else None,
    )
    return Resource(type=ResourceType.CLUSTER, name=name, body=bytes(message))


def failover_cluster(name: str, members: Sequence[str]) -> Resource:
    """The first cluster of `members` that has a healthy host serves a call."""
    budget = cluster.CircuitBreakersThresholdsRetryBudget(
        budget_percent=units.Percent(value=100.0), min_retry_concurrency=MIN_CONCURRENT_RETRIES
    )
    limits = cluster.CircuitBreakers(thresholds=[cluster.CircuitBreakersThresholds(retry_budget=budget)])
    message = cluster.Cluster(
        name=name,
        cluster_type=cluster.ClusterCustomClusterType(
            name="envoy.clusters.aggregate", typed_config=pack_any(aggregate.ClusterConfig(clusters=list(members)))
        ),
        connect_timeout=CONNECT_TIMEOUT,
        lb_policy=cluster.ClusterLbPolicy.CLUSTER_PROVIDED,
        circuit_breakers=limits,
        common_lb_config=only_healthy_hosts(),
    )
    return Resource(
        type=ResourceType.CLUSTER,
        name=name,
        body=bytes(message),
        references=frozenset((ResourceType.CLUSTER, each) for each in members),
    )


def quota_cluster(
    name: str, addresses: Sequence[Address], *, keepalive_interval: timedelta, secrets: str = ""
) -> Resource:
    """HTTP/2 to the gRPC server of each auth, for auth of other regions.

    An auth of another region opens streams until it reaches each replica; round robin needs the fewest of them.
    """
    hosts = [endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=socket_address(each))) for each in addresses]
    message = cluster.Cluster(
        name=name,
        type=cluster.ClusterDiscoveryType.STRICT_DNS,
        load_assignment=endpoint.ClusterLoadAssignment(
            cluster_name=name,
            endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=hosts)],
            policy=ONE_HOST_SUFFICES,
        ),
        connect_timeout=CONNECT_TIMEOUT,
        lb_policy=cluster.ClusterLbPolicy.ROUND_ROBIN,
        health_checks=[grpc_health_check()],
        circuit_breakers=stream_limits(),
        outlier_detection=local_origin_outliers(),
        common_lb_config=only_healthy_hosts(),
        typed_extension_protocol_options={HTTP_OPTIONS: pack_any(upstream_options(http2_upstream(keepalive_interval)))},
        transport_socket=mutual_tls(secrets, "auth", alpn="h2") if secrets else None,
    )
    return Resource(type=ResourceType.CLUSTER, name=name, body=bytes(message))
