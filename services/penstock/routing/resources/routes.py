"""The route resource: the public API to the edges, without timeouts on streams; every other path is refused here.

Admin, channelz, reflection, health and the services between tiers are not public, so the proxy itself answers their
paths with NOT_FOUND over HTTP and UNIMPLEMENTED over gRPC.
"""

from dataclasses import replace
from datetime import timedelta

from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts import v3 as hosts
from envoy_data_plane.envoy.extensions.retry.priority.previous_priorities import v3 as priorities
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from penstock.mesh import proxy_time
from penstock.mesh.credential_headers import API_KEY, AUTHORIZATION
from penstock.routing.resources.authorization import FILTER_NAME, unchecked_route
from penstock.routing.resources.clusters import pack_any
from penstock.routing.resources.local_replies import KEY_MISSING, PATH_UNKNOWN, grpc_reply, http_reply, set_header
from penstock.routing.resources.types import Resource, ResourceType

PUBLIC_SERVICES = ("penstock.v1.Inference", "penstock.v1.Batches")  # of gRPC
PUBLIC_HTTP_PREFIXES = ("/v1/", "/tokenize", "/detokenize")
HEALTH_PATH = "/health"
# As edges read the headers.
BEARER = r"(?i)bearer +\S.*"
ANY_KEY = r"\S.*"
# Retry only while no edge has accepted the call. The client's protocol, not the proxy, resumes a stream that began.
RETRY_ON = "connect-failure,refused-stream,reset-before-request"
MAX_RETRIES = 3
START_TIME = "%START_TIME(%s.%6f)%"  # Unix s at which the proxy received the first byte of a request
NO_TIMEOUT = timedelta(0)  # 0 switches a timeout off


def routes(
    name: str, *, grpc_cluster: str, http_cluster: str, is_authorized: bool = False, hsts_max_age_s: int = 0
) -> Resource:
    """`is_authorized`: the door asks auth about each call of the API, and refuses one without a credential at once."""
    hsts = set_header("strict-transport-security", f"max-age={hsts_max_age_s}")
    message = route.RouteConfiguration(
        name=name,
        virtual_hosts=[
            route.VirtualHost(
                name="edges",
                domains=["*"],
                retry_policy=_retries(),
                routes=_routes(grpc_cluster, http_cluster, is_authorized=is_authorized),
                request_headers_to_add=[set_header(proxy_time.HEADER, START_TIME)],
                response_headers_to_add=[hsts] if hsts_max_age_s else [],
            )
        ],
    )
    return Resource(
        type=ResourceType.ROUTE,
        name=name,
        body=bytes(message),
        references=frozenset({(ResourceType.CLUSTER, grpc_cluster), (ResourceType.CLUSTER, http_cluster)}),
    )


def _routes(grpc_cluster: str, http_cluster: str, *, is_authorized: bool) -> list[route.Route]:
    """Return the routes in the order in which they are tried."""
    found = []
    for service in PUBLIC_SERVICES:
        if is_authorized:
            missing = _match(f"/{service}/", grpc=True, without_credential=True)
            found.append(_local("grpc_key_missing", missing, grpc_reply(KEY_MISSING), is_authorized))
        found.append(route.Route(name="grpc", match=_match(f"/{service}/", grpc=True), route=_route_to(grpc_cluster)))
    found.append(_local("grpc_unknown", _match("/", grpc=True), grpc_reply(PATH_UNKNOWN), is_authorized))
    for prefix in PUBLIC_HTTP_PREFIXES:
        if is_authorized:
            missing = _match(prefix, without_credential=True)
            found.append(_local("http_key_missing", missing, http_reply(KEY_MISSING), is_authorized))
        found.append(route.Route(name="http", match=_match(prefix), route=_route_to(http_cluster)))
    health = route.Route(route=_route_to(http_cluster))
    return [
        *found,
        _local("health", route.RouteMatch(path=HEALTH_PATH), health, is_authorized),
        _local("http_unknown", _match("/"), http_reply(PATH_UNKNOWN), is_authorized),
    ]


def _match(prefix: str, *, grpc: bool = False, without_credential: bool = False) -> route.RouteMatch:
    return route.RouteMatch(
        prefix=prefix,
        grpc=route.RouteMatchGrpcRouteMatchOptions() if grpc else None,
        headers=[_without(AUTHORIZATION, BEARER), _without(API_KEY, ANY_KEY)] if without_credential else [],
    )


def _without(header: str, pattern: str) -> route.HeaderMatcher:
    return route.HeaderMatcher(
        name=header,
        string_match=matcher.StringMatcher(safe_regex=matcher.RegexMatcher(regex=pattern)),
        invert_match=True,
        treat_missing_header_as_empty=True,
    )


def _local(name: str, match: route.RouteMatch, action: route.Route, is_authorized: bool) -> route.Route:
    """Complete a route about which auth is not asked."""
    unchecked = {FILTER_NAME: pack_any(unchecked_route())} if is_authorized else {}
    return replace(action, name=name, match=match, typed_per_filter_config=unchecked)


def _route_to(cluster: str) -> route.RouteAction:
    """Route without timeouts: the edge enforces grpc-timeout; a timer here would end calls as INTERNAL."""
    return route.RouteAction(cluster=cluster, timeout=NO_TIMEOUT, idle_timeout=NO_TIMEOUT)


def _retries() -> route.RetryPolicy:
    return route.RetryPolicy(
        retry_on=RETRY_ON,
        num_retries=MAX_RETRIES,
        host_selection_retry_max_attempts=5,
        retry_host_predicate=[
            route.RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts",
                typed_config=pack_any(hosts.PreviousHostsPredicate()),
            )
        ],
        retry_priority=route.RetryPolicyRetryPriority(
            name="envoy.retry_priorities.previous_priorities",
            typed_config=pack_any(priorities.PreviousPrioritiesConfig(update_frequency=1)),
        ),
    )
