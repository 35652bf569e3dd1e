"""The region door: the listener of a proxy for proxies, edges and auth of other regions.

A proxy of another region sends calls of clients, an edge sends requests of its own queue, and auth follows the tenants
and limits of this region. None may send what another one may. The first two lead to own edges, the last to own auth,
and no route leads to a third region, so that no call can circle.
"""

from collections.abc import Iterator

from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation
from envoy_data_plane.envoy.config.rbac import v3 as rbac
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.filters.http.rbac import v3 as rbac_filter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from penstock.mesh import regions_header
from penstock.routing.resources.clusters import pack_any
from penstock.routing.resources.local_replies import REGION_DRAINED, reply, set_header
from penstock.routing.resources.route_actions import route_to
from penstock.routing.resources.routes import HEALTH_PATH, prefix_match
from penstock.routing.resources.transport_sockets import identities

PROXY_TIER, EDGE_TIER, AUTH_TIER = "envoy", "edge", "auth"
PEER_TIERS = (PROXY_TIER, EDGE_TIER, AUTH_TIER)
GUEST_PREFIX = "/penstock.mesh.v1.RegionService/"
QUOTA_PREFIX = "/penstock.mesh.v1.RegionQuotaService/"
_KEPT_HEADER = "penstock-kept-regions"  # while reserved headers are removed


def first_routes(guest_cluster: str, quota_cluster: str = "", *, is_drained: bool) -> Iterator[route.Route]:
    """Yield the routes of requests of edges to `guest_cluster`, and of streams of auth to `quota_cluster`, if any.

    A drained region accepts no requests and is not healthy. Auth of other regions still follows it.
    """
    if quota_cluster:
        yield route.Route(name="quota", match=prefix_match(QUOTA_PREFIX, grpc=True), route=route_to(quota_cluster))
    guests = prefix_match(GUEST_PREFIX, grpc=True)
    if not is_drained:
        yield route.Route(name="guests", match=guests, route=route_to(guest_cluster))
        return
    yield reply(REGION_DRAINED, is_grpc=True, name="guests_drained", match=guests)
    yield reply(REGION_DRAINED, is_grpc=False, name="health_drained", match=route.RouteMatch(path=HEALTH_PATH))


def peers_filter(trust_domain: str) -> hcm.HttpFilter:
    """Let edges call the service of guests and auth that of shared limits, each nothing else, and proxies all else."""
    guests, quota = _below(GUEST_PREFIX), _below(QUOTA_PREFIX)
    neither = rbac.Permission(not_rule=rbac.Permission(or_rules=rbac.PermissionSet(rules=[guests, quota])))
    policies = {
        tier: rbac.Policy(permissions=[permission], principals=[_principal(trust_domain, tier)])
        for tier, permission in ((EDGE_TIER, guests), (AUTH_TIER, quota), (PROXY_TIER, neither))
    }
    config = rbac_filter.Rbac(rules=rbac.Rbac(action=rbac.RbacAction.ALLOW, policies=policies))
    return hcm.HttpFilter(name="envoy.filters.http.rbac", typed_config=pack_any(config))


def _below(prefix: str) -> rbac.Permission:
    return rbac.Permission(url_path=matcher.PathMatcher(path=matcher.StringMatcher(prefix=prefix)))


def _principal(trust_domain: str, tier: str) -> rbac.Principal:
    return rbac.Principal(authenticated=rbac.PrincipalAuthenticated(principal_name=identities(trust_domain, (tier,))))


def keeping_regions(removals: list[mutation.HeaderMutation]) -> list[mutation.HeaderMutation]:
    """Return header mutations that do `removals`, except of the regions that the other proxy's auth has allowed."""
    return [
        mutation.HeaderMutation(remove=_KEPT_HEADER),
        mutation.HeaderMutation(append=set_header(_KEPT_HEADER, f"%REQ({regions_header.HEADER})%")),
        *removals,
        mutation.HeaderMutation(append=set_header(regions_header.HEADER, f"%REQ({_KEPT_HEADER})%")),
        mutation.HeaderMutation(remove=_KEPT_HEADER),
    ]
