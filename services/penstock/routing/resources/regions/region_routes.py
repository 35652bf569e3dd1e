"""Routes by the regions that auth allows for a call, at the door of clients and at the region door."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from penstock.mesh import regions_header
from penstock.routing.regions.traffic_plan import Order, TrafficPlan
from penstock.routing.resources.local_replies import PATH_UNKNOWN, REGION_NOT_ALLOWED, UNSERVED_HEADER, reply
from penstock.routing.resources.regions.region_clusters import cluster_of
from penstock.routing.resources.route_actions import REGION_RETRIES, route_to

# By a prefix of the public API, the paths below it whose answers are stored in one region: calls to them stay.
STORED_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "/penstock.v1.Batches/": ("/penstock.v1.Batches/",),
    "/v1/": ("/v1/batches", "/v1/files", "/v1/responses/"),
}


@dataclass(frozen=True, slots=True)
class FrontForwarding:
    """Forwards calls of clients in the order of regions of `plan`."""

    plan: TrafficPlan

    def routes(self, name: str, match: route.RouteMatch, cluster: str) -> Iterator[route.Route]:
        """Yield the routes of calls that `match`; `cluster` is that of the own edges.

        Auth has not said where a call may be served when it is routed for the first time. If auth does not say it, the
        call stays.
        """
        if self.plan.others:
            for stored in _stored(match):
                yield from self._stated_routes(name, stored, cluster, [(self.plan.own,)])
                yield route.Route(name=name, match=stored, route=route_to(cluster))
            yield from self._stated_routes(name, match, cluster, self.plan.allowed_sets())
        yield route.Route(name=name, match=match, route=route_to(cluster))

    def _stated_routes(
        self, name: str, match: route.RouteMatch, cluster: str, allowed_sets: Iterable[Order]
    ) -> Iterator[route.Route]:
        """Yield the routes of calls for which auth has stated regions, by the first of `allowed_sets` within them."""
        for allowed in allowed_sets:
            orders = self.plan.orders(allowed)
            clusters = {cluster_of(order, own=self.plan.own, own_cluster=cluster): orders[order] for order in orders}
            yield route.Route(
                name=name,
                match=_allowing(match, allowed),
                route=_weighted(clusters),
                response_headers_to_remove=[UNSERVED_HEADER],
            )
        stated = route.HeaderMatcher(name=regions_header.HEADER, present_match=True)
        yield _refusal(name, replace(match, headers=[*match.headers, stated]))


@dataclass(frozen=True, slots=True)
class GuestForwarding:
    """Forwards calls of other regions to own edges, if auth of one of both regions allows `region`."""

    region: str

    def routes(self, name: str, match: route.RouteMatch, cluster: str) -> Iterator[route.Route]:
        for stored in _stored(match):
            yield replace(reply(PATH_UNKNOWN, is_grpc=match.grpc is not None), name=f"{name}_unknown", match=stored)
        yield route.Route(name=name, match=_allowing(match, (self.region,)), route=route_to(cluster))
        yield _refusal(name, match)


def _stored(match: route.RouteMatch) -> Iterator[route.RouteMatch]:
    for prefix in STORED_PATHS.get(match.prefix or "", ()):
        yield replace(match, prefix=prefix)


def _allowing(match: route.RouteMatch, regions: Order) -> route.RouteMatch:
    """Match calls that may be served in each of `regions`."""
    return replace(match, headers=[*match.headers, *map(_names, regions)])


def _names(region: str) -> route.HeaderMatcher:
    pattern = rf"(.*[, ])?({region}|\{regions_header.ALL_REGIONS})([, ].*)?"
    expected = matcher.StringMatcher(safe_regex=matcher.RegexMatcher(regex=pattern))
    return route.HeaderMatcher(name=regions_header.HEADER, string_match=expected)


def _weighted(clusters: dict[str, int]) -> route.RouteAction:
    if len(clusters) == 1:
        return replace(route_to(*clusters), retry_policy=REGION_RETRIES)
    weights = [route.WeightedClusterClusterWeight(name=name, weight=weight) for name, weight in clusters.items()]
    return replace(route_to(weighted=route.WeightedCluster(clusters=weights)), retry_policy=REGION_RETRIES)


def _refusal(name: str, match: route.RouteMatch) -> route.Route:
    refused = reply(REGION_NOT_ALLOWED, is_grpc=match.grpc is not None)
    return replace(refused, name=f"{name}_region_not_allowed", match=match)
