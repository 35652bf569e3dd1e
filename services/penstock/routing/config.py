"""Settings of routing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from penstock.chassis.config import ServiceConfig, setting
from penstock.routing.edges.discovery import FILE_SCHEME
from penstock.routing.edges.edge_spec import Address, parse_specs


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingConfig(ServiceConfig):
    """Settings of `PENSTOCK_ROUTING_*`."""

    former_names: ClassVar[Mapping[str, str]] = {
        "look_every": "discovery_interval",
        "ping_every": "keepalive_interval",
    }

    listen: str = setting("127.0.0.1:7006", "Address of the xDS server.", unit="host:port")
    drain_grace: float = setting(
        1.0, "Longest drain after SIGTERM. Proxies keep their last configuration without routing.", unit="s"
    )
    edges: str = setting(
        "127.0.0.1:7001/127.0.0.1:7080",
        "Edges, separated by commas: GRPC_HOST:PORT/HTTP_HOST:PORT[@REGION[/ZONE]][;PRIORITY][;draining], or"
        " dns:///NAME:GRPC_PORT/HTTP_PORT with the same endings for one edge per DNS record, or file:///PATH of such"
        " a list with one edge per line.",
    )
    discovery_interval: float = setting(2.0, "Time between two reads of the names and files in `edges`.", unit="s")
    envoy_listen: str = setting(
        "127.0.0.1:8080", "Address on which the proxies accept gRPC and HTTP.", unit="host:port"
    )
    access_log: str = setting(
        "", "File to which proxies write one JSON line per call, or /dev/stdout. Empty: none.", unit="path"
    )
    keepalive_interval: float = setting(
        2.0,
        "Interval of HTTP/2 pings from a proxy to an edge, and the time for an answer before the streams are closed.",
        unit="s",
    )

    envoy_secrets: str = setting(
        "",
        "Folder on the host of each proxy with the files of `penstock.routing.secrets`, which name its certificate "
        "and the mesh's authorities. Proxies then use mutual TLS to edges. Empty: plaintext.",
        unit="path",
    )

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
