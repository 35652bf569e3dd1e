"""Ports of local meshes: ranges that no two meshes share, and ports in use that are named."""

import socket

import pytest

from penstock.local_mesh.plan import BASE_PORT, MeshOptions, plan_mesh
from penstock.local_mesh.ports import (
    BASE_PORTS,
    PLANNED_PORTS,
    PORT_SPAN,
    check_ports,
    ports_of,
    reserved_base_port,
)


def largest_plan(folder, base_port=BASE_PORT):
    options = MeshOptions(
        auths=4, edges=4, queues=4, schedulers=4, workers=4, envoys=4, batches=4, engine="sim", base_port=base_port
    )
    return plan_mesh(options, folder, "pk_dev_0", envoy="/bin/envoy")


def test_every_port_of_the_largest_mesh_is_looked_at_when_a_range_is_chosen(tmp_path):
    ports = {port for spec in largest_plan(tmp_path).processes for port in ports_of(spec)}
    assert ports <= set(PLANNED_PORTS)
    assert max(ports) < BASE_PORT + PORT_SPAN
    assert BASE_PORT not in ports, "it reserves the range"
    assert max(ports) - BASE_PORT + BASE_PORTS[-1] < 32_768, "no outgoing connection takes such a port"


def test_two_meshes_never_reserve_the_same_range():
    with reserved_base_port() as first, reserved_base_port() as second, reserved_base_port() as third:
        assert len({first, second, third}) == 3


def test_a_range_with_a_port_in_use_is_not_chosen():
    with reserved_base_port() as base:
        pass
    with socket.create_server(("127.0.0.1", base + 2)), reserved_base_port() as other:
        assert other != base


@pytest.mark.parametrize(("offset", "process"), [(7, "auth-1"), (88, "edge-1"), (1080, "envoy-1")])
def test_a_port_in_use_is_named_with_its_process(tmp_path, offset, process):
    with (
        reserved_base_port() as base,
        socket.create_server(("127.0.0.1", base + offset)),
        pytest.raises(OSError, match=f"port {base + offset} of {process} is in use"),
    ):
        check_ports(largest_plan(tmp_path, base))
