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

from penstock.mesh import regions_header
from penstock.mesh.credential_headers import API_KEY, AUTHORIZATION
from penstock.routing.edges.edge_spec import Address
from penstock.routing.resources.clusters import (
    CONNECT_TIMEOUT,
    HTTP_OPTIONS,
    http1_upstream,
    http_health_check,
    local_origin_outliers,
    only_healthy_hosts,
    pack_any,
    upstream_options,
)
from penstock.routing.resources.endpoints import socket_address
from penstock.routing.resources.transport_sockets import mutual_tls
from penstock.routing.resources.types import Resource, ResourceType

FILTER_NAME = "envoy.filters.http.ext_authz"
CHECK_PATH = "/check"
# The headers that a check carries. Auth parses them for each call, so a client must not decide how many there are.
CHECKED_HEADERS = (AUTHORIZATION, API_KEY, "content-type", "x-forwarded-for")
IDENTITY_HEADER = "x-penstock-identity"  # of an answer, for the edge
DENIAL_HEADER_PREFIXES = ("content-type", "grpc-", "retry-after", "www-authenticate", "x-penstock-", "x-should-retry")
MAX_CONNECTIONS = 256  # each carries one check at a time
MAX_WAITING_CHECKS = 1024  # more would time out; the calls beyond go on to the edge
MAX_DENIED_BODY_BYTES = 8 * 1024


def auth_cluster(name: str, addresses: Sequence[Address], *, secrets: str = "") -> Resource:
    """HTTP/1.1 to each address that the names of `addresses` resolve to; with `secrets`, by mutual TLS."""
    hosts = [endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=socket_address(each))) for each in addresses]
    threshold = cluster.CircuitBreakersThresholds(
        max_connections=MAX_CONNECTIONS, max_pending_requests=MAX_WAITING_CHECKS
    )
    message = cluster.Cluster(
        name=name,
        type=cluster.ClusterDiscoveryType.STRICT_DNS,
        load_assignment=endpoint.ClusterLoadAssignment(
            cluster_name=name, endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=hosts)]
        ),
        connect_timeout=CONNECT_TIMEOUT,
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,
        health_checks=[http_health_check()],
        circuit_breakers=cluster.CircuitBreakers(thresholds=[threshold]),
        outlier_detection=local_origin_outliers(),
        common_lb_config=only_healthy_hosts(),
        typed_extension_protocol_options={HTTP_OPTIONS: pack_any(upstream_options(http1_upstream()))},
        transport_socket=mutual_tls(secrets, "auth", alpn="http/1.1") if secrets else None,
    )
    return Resource(type=ResourceType.CLUSTER, name=name, body=bytes(message))


def authorization_filter(auth: str, *, timeout: timedelta, chooses_region: bool = False) -> hcm.HttpFilter:
    """Ask the cluster `auth` about each call. A denial has the response that auth wrote.

    A response of auth with a status of 5xx is none: the call goes on to the edge. `chooses_region`: the call is routed
    again once auth has said which regions it may go to.
    """
    service = ext_authz.HttpService(
        server_uri=core.HttpUri(uri=f"http://{auth}{CHECK_PATH}", cluster=auth, timeout=timeout),
        path_override=CHECK_PATH,
        authorization_response=ext_authz.AuthorizationResponse(
            allowed_upstream_headers=_list(exact=[IDENTITY_HEADER, regions_header.HEADER]),
            allowed_client_headers=_list(prefixes=DENIAL_HEADER_PREFIXES),
        ),
    )
    config = ext_authz.ExtAuthz(
        http_service=service,
        transport_api_version=core.ApiVersion.V3,
        failure_mode_allow=True,
        validate_mutations=True,
        allowed_headers=_list(exact=CHECKED_HEADERS),
        clear_route_cache=chooses_region,
        max_denied_response_body_bytes=MAX_DENIED_BODY_BYTES,
    )
    return hcm.HttpFilter(name=FILTER_NAME, typed_config=pack_any(config))


def _list(*, exact: Sequence[str] = (), prefixes: Sequence[str] = ()) -> matcher.ListStringMatcher:
    patterns = [matcher.StringMatcher(exact=each) for each in exact]
    return matcher.ListStringMatcher(patterns=patterns + [matcher.StringMatcher(prefix=each) for each in prefixes])


def unchecked_route() -> ext_authz.ExtAuthzPerRoute:
    return ext_authz.ExtAuthzPerRoute(disabled=True)
