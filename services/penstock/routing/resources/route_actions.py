"""Actions of routes: the cluster that receives a call, and when it is repeated."""

from datetime import timedelta
from typing import Final

from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts import v3 as hosts
from envoy_data_plane.envoy.extensions.retry.priority.previous_priorities import v3 as priorities

from penstock.routing.resources.clusters import pack_any
from penstock.routing.resources.local_replies import UNSERVED_HEADER

# Retry only while no edge has accepted the call. The client's protocol, not the proxy, resumes a stream that began.
RETRY_ON = "connect-failure,refused-stream,reset-before-request"
NO_TIMEOUT = timedelta(0)  # 0 switches a timeout off


def route_to(cluster: str = "", *, weighted: route.WeightedCluster | None = None) -> route.RouteAction:
    """Route without timeouts: the edge enforces grpc-timeout; a timer here would end calls as INTERNAL."""
    target = {"weighted_clusters": weighted} if weighted else {"cluster": cluster}
    return route.RouteAction(**target, timeout=NO_TIMEOUT, idle_timeout=NO_TIMEOUT)


def retries(times: int, *, attempts_per_priority: int, retry_on: str = RETRY_ON) -> route.RetryPolicy:
    """Retry at another host, and after `attempts_per_priority` at the next priority."""
    unserved = route.HeaderMatcher(name=UNSERVED_HEADER, present_match=True)
    return route.RetryPolicy(
        retry_on=retry_on,
        retriable_headers=[unserved] if "retriable-headers" in retry_on else [],
        num_retries=times,
        host_selection_retry_max_attempts=5,
        retry_host_predicate=[
            route.RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts",
                typed_config=pack_any(hosts.PreviousHostsPredicate()),
            )
        ],
        retry_priority=route.RetryPolicyRetryPriority(
            name="envoy.retry_priorities.previous_priorities",
            typed_config=pack_any(priorities.PreviousPrioritiesConfig(update_frequency=attempts_per_priority)),
        ),
    )


EDGE_RETRIES: Final = retries(3, attempts_per_priority=1)
# With two attempts per priority, Envoy makes the second one with the load of the first: a call fails with "no healthy
# upstream" if a health check fails in between.
REGION_RETRIES: Final = retries(5, attempts_per_priority=1, retry_on=f"{RETRY_ON},retriable-headers")
