"""Authorization at the door: the cluster of auth, and the filter that asks it about the headers of each call.

If auth does not answer, the call goes on to the edge without an identity. The edge identifies the caller itself, by the
rules of the auth fallback, so that strangers are refused there.
"""

from collections.abc import Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.extensions.filters.http.ext_authz import v3 as ext_authz
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from penstock.routing.edges.edge_spec import Address
from penstock.routing.resources.clusters import (
    CONNECT_TIMEOUT,
    HTTP_OPTIONS,
    grpc_health_check,
    http2_upstream,
    local_origin_outliers,
    only_healthy_hosts,
    pack_any,
    upstream_options,
)
from penstock.routing.resources.endpoints import socket_address
from penstock.routing.resources.transport_sockets import mutual_tls
from penstock.routing.resources.types import Resource, ResourceType

FILTER_NAME = "envoy.filters.http.ext_authz"
# The headers that a check carries. Auth parses them for each call, so a client must not decide how many there are.
CHECKED_HEADERS = ("authorization", "content-type", "x-forwarded-for")
MAX_CONCURRENT_CHECKS = 1024  # more would time out; the calls beyond go on to the edge
MAX_DENIED_BODY_BYTES = 8 * 1024


def auth_cluster(
    name: str, addresses: Sequence[Address], *, keepalive_interval: timedelta, secrets: str = ""
) -> Resource:
    """HTTP/2 to each address that the names of `addresses` resolve to; with `secrets`, by mutual TLS."""
    hosts = [endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=socket_address(each))) for each in addresses]
    options = upstream_options(http2_upstream(keepalive_interval))
    threshold = cluster.CircuitBreakersThresholds(max_requests=MAX_CONCURRENT_CHECKS)
    message = cluster.Cluster(
        name=name,
        type=cluster.ClusterDiscoveryType.STRICT_DNS,
        load_assignment=endpoint.ClusterLoadAssignment(
            cluster_name=name, endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=hosts)]
        ),
        connect_timeout=CONNECT_TIMEOUT,
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,
        health_checks=[grpc_health_check()],
        circuit_breakers=cluster.CircuitBreakers(thresholds=[threshold]),
        outlier_detection=local_origin_outliers(),
        common_lb_config=only_healthy_hosts(),
        typed_extension_protocol_options={HTTP_OPTIONS: pack_any(options)},
        transport_socket=mutual_tls(secrets, "auth", alpn="h2") if secrets else None,
    )
    return Resource(type=ResourceType.CLUSTER, name=name, body=bytes(message))


def authorization_filter(auth: str, *, timeout: timedelta) -> hcm.HttpFilter:
    """Ask the cluster `auth` about each call. A denial has the response that auth wrote."""
    service = core.GrpcService(
        envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=auth, skip_envoy_headers=True), timeout=timeout
    )
    config = ext_authz.ExtAuthz(
        grpc_service=service,
        transport_api_version=core.ApiVersion.V3,
        failure_mode_allow=True,
        failure_mode_allow_header_add=True,
        validate_mutations=True,
        allowed_headers=matcher.ListStringMatcher(
            patterns=[matcher.StringMatcher(exact=name) for name in CHECKED_HEADERS]
        ),
        max_denied_response_body_bytes=MAX_DENIED_BODY_BYTES,
    )
    return hcm.HttpFilter(name=FILTER_NAME, typed_config=pack_any(config))


def unchecked_route() -> ext_authz.ExtAuthzPerRoute:
    return ext_authz.ExtAuthzPerRoute(disabled=True)
