"""Settings of routing: where the edges are, and what the proxies in front of them are to be."""

from dataclasses import dataclass
from datetime import timedelta

from penstock.chassis.config import ServiceConfig
from penstock.routing.edges.discovery import FILE_SCHEME
from penstock.routing.edges.edge_spec import Address, parse_specs


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingConfig(ServiceConfig):
    listen: str = "127.0.0.1:7006"
    drain_grace: float = 1.0  # s; a stream of answers is never finished, and proxies go on without it
    # Comma list of GRPC_HOST:PORT/HTTP_HOST:PORT[@REGION[/ZONE]][;PRIORITY][;draining], of dns:///NAME:GRPC_PORT/HTTP_PORT...
    # for an edge per DNS record, or file:///path of such a list, one per line.
    edges: str = "127.0.0.1:7001/127.0.0.1:7080"
    discovery_interval: float = 2.0  # s; between looks at names and files behind `edges`: how late an edge may be known
    envoy_listen: str = "127.0.0.1:8080"  # where the proxies answer, gRPC and HTTP alike
    access_log: str = ""  # file the proxies write one JSON line per call to (/dev/stdout too); empty: none
    keepalive_interval: float = 2.0  # s; pings to an edge, each answered within as long or its streams are given up

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        Address.parse(self.envoy_listen)
        if not self.edges.startswith(FILE_SCHEME):
            parse_specs(self.edges)
        for name in ("discovery_interval", "keepalive_interval"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0 s")

    @property
    def keepalive(self) -> timedelta:
        return timedelta(seconds=self.keepalive_interval)
