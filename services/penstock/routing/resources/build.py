"""Builds the snapshot of a set of edges.

Importing this module loads the Envoy API (0.4 s, 50 MB), so only the composition root of routing does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter

from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm

from penstock.chassis.security.certificate_pair import CertificatePair
from penstock.routing.edges.edge_spec import Address, Edge
from penstock.routing.regions.region_spec import Region
from penstock.routing.regions.traffic_plan import TrafficPlan, all_orders
from penstock.routing.resources.authorization import auth_cluster, authorization_filter
from penstock.routing.resources.clusters import grpc_cluster, http_cluster
from penstock.routing.resources.connection_manager import connection_manager
from penstock.routing.resources.door_tls import door_secret
from penstock.routing.resources.endpoints import endpoints
from penstock.routing.resources.listeners import front_listener, redirect_listener, region_listener
from penstock.routing.resources.regions.region_clusters import (
    cluster_of,
    failover_cluster,
    quota_cluster,
    region_cluster,
    region_cluster_name,
)
from penstock.routing.resources.regions.region_door import PEER_TIERS, first_routes, peers_filter
from penstock.routing.resources.regions.region_routes import FrontForwarding, GuestForwarding
from penstock.routing.resources.routes import RouteTable
from penstock.routing.resources.tracing import Collector, collector_cluster, tracing
from penstock.routing.resources.transport_sockets import accepting_tls
from penstock.routing.resources.types import Resource
from penstock.routing.snapshot import Snapshot

LISTENER_NAME, REDIRECT_NAME, ROUTE_CONFIG_NAME = "front", "redirect", "edges"
GRPC_CLUSTER, HTTP_CLUSTER, AUTH_CLUSTER = "edge_grpc", "edge_http", "auth"
COLLECTOR_CLUSTER = "otlp"
REGION_LISTENER_NAME, REGION_ROUTES_NAME, GUEST_CLUSTER = "region_door", "region_door", "edge_guests"
QUOTA_CLUSTER = "auth_quota"
ONLY_REGION = TrafficPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Configuration of the proxies, apart from the edges and the certificate."""

    listen: Address
    redirect_listen: Address | None = None  # plaintext port that redirects to `listen`; None: none
    hsts_max_age_s: int = 0  # 0: the header is not sent
    auths: tuple[Address, ...] = ()  # that are asked about each call; empty: the edges alone identify callers
    auth_check_timeout: timedelta = timedelta(seconds=0.25)
    max_streams_per_connection: int = 100  # concurrent calls of one client's connection
    access_log: str = ""  # file to which proxies write one JSON line per call; empty: none
    # Interval of pings to each edge; a ping without a response for as long closes the streams of that edge.
    keepalive_interval: timedelta = timedelta(seconds=2)
    collector: Collector | None = None  # of the proxies' spans; None: they record none
    secrets: str = ""  # folder of the proxies' secrets, for mutual TLS to edges; empty: plaintext
    trust_domain: str = ""  # of the peers of the region door
    region: str = ""  # of the proxies; empty: the only one
    region_listen: Address | None = None  # the region door; None: none
    region_auths: tuple[Address, ...] = ()  # gRPC servers of auth, for auth of other regions; empty: none follows
    regions: tuple[Region, ...] = ()  # others, in order of preference


def build_snapshot(
    proxy: ProxyConfig,
    edges: Iterable[Edge],
    certificate: CertificatePair | None = None,
    plan: TrafficPlan = ONLY_REGION,
) -> Snapshot:
    """With a certificate the door speaks TLS, without one plaintext. `plan` is of the regions of `proxy`."""
    members = list(edges)
    return Snapshot.of(
        [
            grpc_cluster(GRPC_CLUSTER, keepalive_interval=proxy.keepalive_interval, secrets=proxy.secrets),
            http_cluster(HTTP_CLUSTER, secrets=proxy.secrets),
            endpoints(GRPC_CLUSTER, members, attrgetter("grpc"), has_other_regions=bool(proxy.regions)),
            endpoints(HTTP_CLUSTER, members, attrgetter("http"), has_other_regions=bool(proxy.regions)),
            *_shared_clusters(proxy),
            *_region_clusters(proxy),
            *_front(proxy, certificate, plan),
            *_region_door(proxy, plan),
        ]
    )


def _shared_clusters(proxy: ProxyConfig) -> Iterator[Resource]:
    """Yield the clusters that the listeners use themselves."""
    if proxy.auths:
        yield auth_cluster(AUTH_CLUSTER, proxy.auths, secrets=proxy.secrets)
    if proxy.collector:
        yield collector_cluster(COLLECTOR_CLUSTER, proxy.collector)


def _region_clusters(proxy: ProxyConfig) -> Iterator[Resource]:
    for region in proxy.regions:
        yield region_cluster(region, keepalive_interval=proxy.keepalive_interval, secrets=proxy.secrets)
    for name, members in _failover_members(proxy).items():
        yield failover_cluster(name, members)


def _failover_members(proxy: ProxyConfig) -> dict[str, list[str]]:
    """Return the clusters of all orders of regions with their members.

    They are those of any plan, so that a change of the plan changes routes alone. (A proxy removes a cluster before it
    changes the routes to it, and would fail calls in between.)
    """
    found = {}
    for order in all_orders(proxy.region, tuple(each.name for each in proxy.regions)):
        for own in (GRPC_CLUSTER, HTTP_CLUSTER):
            members = [own if name == proxy.region else region_cluster_name(name) for name in order]
            found[cluster_of(order, own=proxy.region, own_cluster=own)] = members
    return found


def _front(proxy: ProxyConfig, certificate: CertificatePair | None, plan: TrafficPlan) -> Iterator[Resource]:
    """Yield the door of clients and its routes."""
    others = {*_failover_members(proxy), *(region_cluster_name(each.name) for each in proxy.regions)}
    yield RouteTable(
        name=ROUTE_CONFIG_NAME,
        grpc_cluster=GRPC_CLUSTER,
        http_cluster=HTTP_CLUSTER,
        other_clusters=frozenset(others),
        forwarding=FrontForwarding(plan),
        is_authorized=bool(proxy.auths),
        hsts_max_age_s=proxy.hsts_max_age_s if certificate else 0,
    ).resource()
    filters = _authorization(proxy, chooses_region=bool(proxy.regions))
    manager = _manager(proxy, ROUTE_CONFIG_NAME, filters)
    yield front_listener(
        LISTENER_NAME,
        proxy.listen,
        manager,
        routes=ROUTE_CONFIG_NAME,
        clusters=_clusters_of_listeners(proxy),
        tls=certificate is not None,
    )
    if certificate is not None:
        yield door_secret(certificate)
        if proxy.redirect_listen:
            yield redirect_listener(REDIRECT_NAME, proxy.redirect_listen, door_port=proxy.listen.port)


def _region_door(proxy: ProxyConfig, plan: TrafficPlan) -> Iterator[Resource]:
    """Yield the door of other regions, its routes, and a cluster whose calls of other edges are counted apart."""
    if proxy.region_listen is None:
        return
    yield grpc_cluster(
        GUEST_CLUSTER,
        keepalive_interval=proxy.keepalive_interval,
        secrets=proxy.secrets,
        endpoints=GRPC_CLUSTER,
    )
    quota = QUOTA_CLUSTER if proxy.region_auths else ""
    if quota:
        yield quota_cluster(
            quota, proxy.region_auths, keepalive_interval=proxy.keepalive_interval, secrets=proxy.secrets
        )
    yield RouteTable(
        name=REGION_ROUTES_NAME,
        grpc_cluster=GRPC_CLUSTER,
        http_cluster=HTTP_CLUSTER,
        other_clusters=frozenset({GUEST_CLUSTER, quota} - {""}),
        forwarding=GuestForwarding(proxy.region),
        is_authorized=bool(proxy.auths),
        first=tuple(first_routes(GUEST_CLUSTER, quota, is_drained=plan.is_drained)),
    ).resource()
    peers = [peers_filter(proxy.trust_domain)] if proxy.secrets else []
    filters = [*peers, *_authorization(proxy, chooses_region=True)]
    yield region_listener(
        REGION_LISTENER_NAME,
        proxy.region_listen,
        _manager(proxy, REGION_ROUTES_NAME, filters, is_region_door=True),
        routes=REGION_ROUTES_NAME,
        clusters=_clusters_of_listeners(proxy),
        transport=accepting_tls(proxy.secrets, proxy.trust_domain, PEER_TIERS, alpn="h2") if proxy.secrets else None,
    )


def _authorization(proxy: ProxyConfig, *, chooses_region: bool) -> list[hcm.HttpFilter]:
    if not proxy.auths:
        return []
    return [authorization_filter(AUTH_CLUSTER, timeout=proxy.auth_check_timeout, chooses_region=chooses_region)]


def _manager(
    proxy: ProxyConfig, routes: str, filters: list[hcm.HttpFilter], *, is_region_door: bool = False
) -> hcm.HttpConnectionManager:
    return connection_manager(
        routes=routes,
        log_path=proxy.access_log,
        max_streams=proxy.max_streams_per_connection,
        filters=filters,
        tracing=tracing(COLLECTOR_CLUSTER, proxy.collector.ratio) if proxy.collector else None,
        is_region_door=is_region_door,
    )


def _clusters_of_listeners(proxy: ProxyConfig) -> list[str]:
    """Return the clusters that the filters of a door refer to."""
    return [AUTH_CLUSTER] * bool(proxy.auths) + [COLLECTOR_CLUSTER] * bool(proxy.collector)
