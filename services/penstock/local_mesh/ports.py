"""Ports of a local mesh: a free range of them that no other mesh takes, and a check that those of a plan are free."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.local_mesh.plan import BASE_PORT, MeshPlan, ProcessSpec

PORT_SPAN = 1_200  # from port 7000 to Envoy's 8081 and the links of a region, with replicas
# Below the ports that Linux gives to outgoing connections by default (ip_local_port_range, 32768-60999): such a
# connection can take a port of a mesh while it starts.
BASE_PORTS = range(9 * PORT_SPAN, 32_768 - PORT_SPAN + 1, PORT_SPAN)
_FIRST_PORTS = (*range(7001, 7009), 7029, *range(7201, 7207), 7229, 7080, 7088, *range(8080, 8084))
PLANNED_PORTS = [port + 10 * replica for port in _FIRST_PORTS for replica in range(4)]


@contextmanager
def reserved_base_port() -> Iterator[int]:
    """Yield a base port whose whole span is free, and reserve it for the block. Raises OSError if there is none.

    The base port itself belongs to no process. It is bound meanwhile, so that another mesh takes another range.
    """
    for base in random.sample(BASE_PORTS, len(BASE_PORTS)):
        with socket.socket() as reservation:
            try:
                reservation.bind(("127.0.0.1", base))
            except OSError:
                continue
            if all(is_free(base + port - BASE_PORT) for port in PLANNED_PORTS):
                yield base
                return
    message = "there is no free range of ports on loopback; name one with --base-port"
    raise OSError(message)


def check_ports(plan: MeshPlan) -> None:
    """Raise OSError if a port on which a process of the plan will listen is in use."""
    for spec in plan.processes:
        for port in ports_of(spec):
            if not is_free(port):
                text = f"port {port} of {spec.name} is in use, perhaps by another mesh"
                raise OSError(f"{text}; stop it, or choose other ports with --base-port (0: free ones)")


def ports_of(spec: ProcessSpec) -> list[int]:
    """Return the TCP ports on which a process listens."""
    settings = {value for name, value in spec.environment.items() if name.endswith("_LISTEN") and "_ENVOY_" not in name}
    own = {spec.address, spec.http, spec.admin, *settings}
    return sorted(int(each.rpartition(":")[2]) for each in own if each and not each.startswith("unix:"))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignores closed connections of a mesh that ended
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
