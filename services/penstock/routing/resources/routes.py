"""The route resource: gRPC to one cluster, HTTP to the other, without timeouts on streams."""

from datetime import timedelta

from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts import v3 as hosts
from envoy_data_plane.envoy.extensions.retry.priority.previous_priorities import v3 as priorities

from penstock.routing.resources.clusters import pack_any
from penstock.routing.resources.types import Resource, ResourceType

# Retry only while no edge has accepted the call. The client's protocol, not the proxy, resumes a stream that began.
RETRY_ON = "connect-failure,refused-stream,reset-before-request"
MAX_RETRIES = 3
NO_TIMEOUT = timedelta(0)  # 0 switches a timeout off


def routes(name: str, *, grpc_cluster: str, http_cluster: str) -> Resource:
    is_grpc = route.RouteMatch(prefix="/", grpc=route.RouteMatchGrpcRouteMatchOptions())
    message = route.RouteConfiguration(
        name=name,
        virtual_hosts=[
            route.VirtualHost(
                name="edges",
                domains=["*"],
                retry_policy=_retries(),
                routes=[
                    route.Route(name="grpc", match=is_grpc, route=_route_to(grpc_cluster)),
                    route.Route(name="http", match=route.RouteMatch(prefix="/"), route=_route_to(http_cluster)),
                ],
            )
        ],
    )
    return Resource(
        type=ResourceType.ROUTE,
        name=name,
        body=bytes(message),
        references=frozenset({(ResourceType.CLUSTER, grpc_cluster), (ResourceType.CLUSTER, http_cluster)}),
    )


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
