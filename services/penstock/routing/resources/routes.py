"""The route resource: the public API to the edges, without timeouts on streams; every other path is refused here.

Admin, channelz, reflection, health and the services between tiers are not public, so the proxy itself answers their
paths with NOT_FOUND over HTTP and UNIMPLEMENTED over gRPC.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from penstock.mesh import proxy_time
from penstock.mesh.credential_headers import API_KEY, AUTHORIZATION
from penstock.routing.resources.authorization import FILTER_NAME, unchecked_route
from penstock.routing.resources.clusters import pack_any
from penstock.routing.resources.local_replies import KEY_MISSING, PATH_UNKNOWN, reply, set_header
from penstock.routing.resources.route_actions import EDGE_RETRIES, route_to
from penstock.routing.resources.types import Resource, ResourceType

PUBLIC_SERVICES = ("penstock.v1.Inference", "penstock.v1.Batches")  # of gRPC
PUBLIC_HTTP_PREFIXES = ("/v1/", "/tokenize", "/detokenize")
HEALTH_PATH = "/health"
# As edges read the headers.
BEARER = r"(?i)bearer +\S.*"
ANY_KEY = r"\S.*"
START_TIME = "%START_TIME(%s.%6f)%"  # Unix s at which the proxy received the first byte of a request


class Forwarding(Protocol):
    """Routes of the calls of the public API."""

    def routes(self, name: str, match: route.RouteMatch, cluster: str) -> Iterable[route.Route]:
        """Return the routes of the calls that `match`; `cluster` is that of the own edges."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTable:
    """The routes of one listener."""

    name: str
    grpc_cluster: str
    http_cluster: str
    forwarding: Forwarding
    other_clusters: frozenset[str] = frozenset()  # that `forwarding` or `first` may use beside the two above
    # The door asks auth about each call of the API, and refuses one without a credential at once.
    is_authorized: bool = False
    hsts_max_age_s: int = 0  # 0: the header is not sent
    first: Sequence[route.Route] = ()  # before all others; auth is not asked about them

    def resource(self) -> Resource:
        hsts = set_header("strict-transport-security", f"max-age={self.hsts_max_age_s}")
        message = route.RouteConfiguration(
            name=self.name,
            virtual_hosts=[
                route.VirtualHost(
                    name="edges",
                    domains=["*"],
                    retry_policy=EDGE_RETRIES,
                    routes=self._routes(),
                    request_headers_to_add=[set_header(proxy_time.HEADER, START_TIME)],
                    response_headers_to_add=[hsts] if self.hsts_max_age_s else [],
                )
            ],
        )
        clusters = {self.grpc_cluster, self.http_cluster, *self.other_clusters}
        return Resource(
            type=ResourceType.ROUTE,
            name=self.name,
            body=bytes(message),
            references=frozenset((ResourceType.CLUSTER, each) for each in clusters),
        )

    def _routes(self) -> list[route.Route]:
        """Return the routes in the order in which they are tried."""
        found = [self._local(each) for each in self.first]
        for service in PUBLIC_SERVICES:
            found += self._api("grpc", f"/{service}/", self.grpc_cluster)
        found.append(
            self._local(reply(PATH_UNKNOWN, name="grpc_unknown", is_grpc=True, match=prefix_match("/", grpc=True)))
        )
        for prefix in PUBLIC_HTTP_PREFIXES:
            found += self._api("http", prefix, self.http_cluster)
        health = route.Route(name="health", match=route.RouteMatch(path=HEALTH_PATH), route=route_to(self.http_cluster))
        unknown = reply(PATH_UNKNOWN, name="http_unknown", is_grpc=False, match=prefix_match("/"))
        return [*found, self._local(health), self._local(unknown)]

    def _api(self, name: str, prefix: str, cluster: str) -> Iterator[route.Route]:
        """Yield the routes of the public API below `prefix`."""
        is_grpc = name == "grpc"
        if self.is_authorized:
            missing = prefix_match(prefix, grpc=is_grpc, without_credential=True)
            yield self._local(reply(KEY_MISSING, name=f"{name}_key_missing", is_grpc=is_grpc, match=missing))
        yield from self.forwarding.routes(name, prefix_match(prefix, grpc=is_grpc), cluster)

    def _local(self, complete: route.Route) -> route.Route:
        """Return a route about which auth is not asked."""
        unchecked = {FILTER_NAME: pack_any(unchecked_route())} if self.is_authorized else {}
        return replace(complete, typed_per_filter_config=unchecked)


def prefix_match(prefix: str, *, grpc: bool = False, without_credential: bool = False) -> route.RouteMatch:
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
