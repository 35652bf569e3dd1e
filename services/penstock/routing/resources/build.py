"""Builds the snapshot of a set of edges.

Importing this module loads the Envoy API (0.4 s, 50 MB), so only the composition root of routing does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter

from penstock.routing.edges.edge_spec import Address, Edge
from penstock.routing.resources.clusters import grpc_cluster, http_cluster
from penstock.routing.resources.endpoints import endpoints
from penstock.routing.resources.listeners import front_listener
from penstock.routing.resources.routes import routes
from penstock.routing.snapshot import Snapshot

LISTENER_NAME, ROUTE_CONFIG_NAME, GRPC_CLUSTER, HTTP_CLUSTER = "front", "edges", "edge_grpc", "edge_http"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Configuration of the proxies, apart from the edges."""

    listen: Address
    access_log: str = ""  # file to which proxies write one JSON line per call; empty: none
    # Interval of pings to each edge; a ping without a response for as long closes the streams of that edge.
    keepalive_interval: timedelta = timedelta(seconds=2)
    secrets: str = ""  # folder of the proxies' secrets, for mutual TLS to edges; empty: plaintext


def build_snapshot(proxy: ProxyConfig, edges: Iterable[Edge]) -> Snapshot:
    members = list(edges)
    return Snapshot.of(
        [
            grpc_cluster(GRPC_CLUSTER, keepalive_interval=proxy.keepalive_interval, secrets=proxy.secrets),
            http_cluster(HTTP_CLUSTER, secrets=proxy.secrets),
            endpoints(GRPC_CLUSTER, members, attrgetter("grpc")),
            endpoints(HTTP_CLUSTER, members, attrgetter("http")),
            front_listener(LISTENER_NAME, proxy.listen, routes=ROUTE_CONFIG_NAME, access_log=proxy.access_log),
            routes(ROUTE_CONFIG_NAME, grpc_cluster=GRPC_CLUSTER, http_cluster=HTTP_CLUSTER),
        ]
    )
