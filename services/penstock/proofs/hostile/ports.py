"""The ports of a mesh, by the kind of their protocol and peers. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from penstock.local_mesh.plan import MeshPlan


class PortKind(StrEnum):
    EDGE_GRPC = "edge gRPC"
    EDGE_HTTP = "edge HTTP"
    FRONT = "Envoy"
    PROXY_GRPC = "edge gRPC for Envoy"  # doors of an edge for Envoy alone, if the mesh has them
    PROXY_HTTP = "edge HTTP for Envoy"
    AUTH = "auth"
    CHECKS = "auth HTTP for Envoy"
    QUEUE = "queue"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    ROUTING = "routing"
    BATCH = "batch"
    HEALTH = "health"
    ADMIN = "operators"


GRPC_DOORS = (PortKind.EDGE_GRPC, PortKind.FRONT)
HTTP_DOORS = (PortKind.EDGE_HTTP, PortKind.FRONT)
PROXY_DOORS = (PortKind.PROXY_GRPC, PortKind.PROXY_HTTP)
INNER = (PortKind.AUTH, PortKind.QUEUE, PortKind.SCHEDULER, PortKind.WORKER, PortKind.ROUTING, PortKind.BATCH)

_OTHERS = ("_ENVOY_LISTEN", "_METRICS_LISTEN")  # the first is Envoy's own, the second has one page for anybody
_KINDS = {  # of further ports of a tier
    "PENSTOCK_AUTH_CHECK_LISTEN": PortKind.CHECKS,
    "PENSTOCK_EDGE_LISTEN": PortKind.EDGE_GRPC,
    "PENSTOCK_EDGE_HTTP_LISTEN": PortKind.EDGE_HTTP,
    "PENSTOCK_EDGE_PROXY_LISTEN": PortKind.PROXY_GRPC,
    "PENSTOCK_EDGE_PROXY_HTTP_LISTEN": PortKind.PROXY_HTTP,
}


@dataclass(frozen=True, slots=True)
class Port:
    """One TCP port on loopback, and the process behind it."""

    kind: PortKind
    process: str
    address: str  # host:port

    @property
    def endpoint(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)


def ports_of(plan: MeshPlan) -> list[Port]:
    """Return the TCP ports of the first process of each tier, so that all attacks have the same victims.

    Unix sockets are left out: the folder of the mesh keeps other users away from them. Raises ValueError for a port
    that is not on loopback, because no attack may leave this host.
    """
    ports = list(_ports(plan))
    for port in ports:
        if not ip_address(port.endpoint[0]).is_loopback:
            raise ValueError(f"{port.address} is not on loopback; attacks are for a mesh on this host only")
    return ports


def _ports(plan: MeshPlan) -> Iterator[Port]:
    seen: set[str] = set()
    for spec in plan.processes:
        if spec.tier in seen:
            continue
        seen.add(spec.tier)
        if spec.tier == "envoy":
            yield Port(PortKind.FRONT, spec.name, spec.address)
            continue
        for name, address in spec.environment.items():
            if not name.endswith("_LISTEN") or name.endswith(_OTHERS) or address.startswith("unix:"):
                continue
            yield Port(_kind(spec.tier, name), spec.name, address)


def _kind(tier: str, setting: str) -> PortKind:
    if setting.endswith("_ADMIN_LISTEN"):
        return PortKind.ADMIN
    if setting.endswith("_HEALTH_LISTEN"):
        return PortKind.HEALTH
    return _KINDS[setting] if setting in _KINDS else PortKind(tier)


def ports_of_kinds(ports: Sequence[Port], kinds: Sequence[PortKind]) -> list[Port]:
    return [port for port in ports if port.kind in kinds]
