"""Builds the snapshot of a set of edges.

Importing this module loads the Envoy API (0.4 s, 50 MB), so only the composition root of routing does.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter

from penstock.routing.door_certificate import CertificatePair
from penstock.routing.edges.edge_spec import Address, Edge
from penstock.routing.resources.authorization import auth_cluster, authorization_filter
from penstock.routing.resources.clusters import grpc_cluster, http_cluster
from penstock.routing.resources.connection_manager import connection_manager
from penstock.routing.resources.door_tls import door_secret
from penstock.routing.resources.endpoints import endpoints
from penstock.routing.resources.listeners import front_listener, redirect_listener
from penstock.routing.resources.routes import routes
from penstock.routing.resources.tracing import Collector, collector_cluster, tracing
from penstock.routing.resources.types import Resource
from penstock.routing.snapshot import Snapshot

LISTENER_NAME, REDIRECT_NAME, ROUTE_CONFIG_NAME = "front", "redirect", "edges"
GRPC_CLUSTER, HTTP_CLUSTER, AUTH_CLUSTER = "edge_grpc", "edge_http", "auth"
COLLECTOR_CLUSTER = "otlp"


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


def build_snapshot(proxy: ProxyConfig, edges: Iterable[Edge], certificate: CertificatePair | None = None) -> Snapshot:
    """With a certificate the door speaks TLS, without one plaintext."""
    members = list(edges)
    return Snapshot.of(
        [
            grpc_cluster(GRPC_CLUSTER, keepalive_interval=proxy.keepalive_interval, secrets=proxy.secrets),
            http_cluster(HTTP_CLUSTER, secrets=proxy.secrets),
            endpoints(GRPC_CLUSTER, members, attrgetter("grpc")),
            endpoints(HTTP_CLUSTER, members, attrgetter("http")),
            routes(
                ROUTE_CONFIG_NAME,
                grpc_cluster=GRPC_CLUSTER,
                http_cluster=HTTP_CLUSTER,
                is_authorized=bool(proxy.auths),
                hsts_max_age_s=proxy.hsts_max_age_s if certificate else 0,
            ),
            *_door(proxy, certificate),
        ]
    )


def _door(proxy: ProxyConfig, certificate: CertificatePair | None) -> Iterator[Resource]:
    filters = []
    if proxy.auths:
        yield auth_cluster(AUTH_CLUSTER, proxy.auths, secrets=proxy.secrets)
        filters.append(authorization_filter(AUTH_CLUSTER, timeout=proxy.auth_check_timeout))
    manager = connection_manager(
        routes=ROUTE_CONFIG_NAME,
        log_path=proxy.access_log,
        max_streams=proxy.max_streams_per_connection,
        filters=filters,
        tracing=tracing(COLLECTOR_CLUSTER, proxy.collector.ratio) if proxy.collector else None,
    )
    clusters = [AUTH_CLUSTER] if proxy.auths else []
    if proxy.collector:
        yield collector_cluster(COLLECTOR_CLUSTER, proxy.collector)
        clusters.append(COLLECTOR_CLUSTER)
    yield front_listener(
        LISTENER_NAME, proxy.listen, manager, routes=ROUTE_CONFIG_NAME, clusters=clusters, tls=certificate is not None
    )
    if certificate is not None:
        yield door_secret(certificate)
        if proxy.redirect_listen:
            yield redirect_listener(REDIRECT_NAME, proxy.redirect_listen, door_port=proxy.listen.port)
