"""From a plain description of the edges to the snapshot the proxies get.

Importing this loads the Envoy API (0.4 s, 50 MB), so only this service's composition root does.
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
    """What the proxies are to be, edges apart."""

    listen: Address
    access_log: str = ""  # file the proxies write one JSON line per call to; empty: none
    keepalive_interval: timedelta = timedelta(
        seconds=2
    )  # to each edge; one left unanswered for as long ends its streams


def build_snapshot(proxy: ProxyConfig, edges: Iterable[Edge]) -> Snapshot:
    members = list(edges)
    return Snapshot.of(
        [
            grpc_cluster(GRPC_CLUSTER, keepalive_interval=proxy.keepalive_interval),
            http_cluster(HTTP_CLUSTER),
            endpoints(GRPC_CLUSTER, members, attrgetter("grpc")),
            endpoints(HTTP_CLUSTER, members, attrgetter("http")),
            front_listener(LISTENER_NAME, proxy.listen, routes=ROUTE_CONFIG_NAME, access_log=proxy.access_log),
            routes(ROUTE_CONFIG_NAME, grpc_cluster=GRPC_CLUSTER, http_cluster=HTTP_CLUSTER),
        ]
    )
