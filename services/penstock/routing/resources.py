"""From a plain description of the edges to the snapshot the proxies get.

Importing this loads the Envoy API (0.4 s, 50 MB), so only this service's composition root does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter

from penstock.routing.clusters import grpc_cluster, http_cluster
from penstock.routing.edge import Address, Edge
from penstock.routing.endpoints import endpoints
from penstock.routing.listeners import front_listener
from penstock.routing.routes import routes
from penstock.routing.snapshot import Snapshot

LISTENER, ROUTES, GRPC, HTTP = "front", "edges", "edge_grpc", "edge_http"


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What the proxies are to be, edges apart."""

    listen: Address
    access_log: str = ""  # file the proxies write one JSON line per call to; empty: none
    ping_every: timedelta = timedelta(seconds=2)  # to each edge; one left unanswered for as long ends its streams


def front_snapshot(front: Front, edges: Iterable[Edge]) -> Snapshot:
    members = list(edges)
    return Snapshot.of(
        [
            grpc_cluster(GRPC, ping_every=front.ping_every),
            http_cluster(HTTP),
            endpoints(GRPC, members, attrgetter("grpc")),
            endpoints(HTTP, members, attrgetter("http")),
            front_listener(LISTENER, front.listen, routes=ROUTES, access_log=front.access_log),
            routes(ROUTES, grpc_cluster=GRPC, http_cluster=HTTP),
        ]
    )
