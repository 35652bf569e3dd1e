"""A local mesh that does not become ready in time names what it waits for."""

from dataclasses import replace

import pytest

from penstock.local_mesh import mesh
from penstock.local_mesh.launch import local_mesh
from penstock.local_mesh.plan import MeshOptions


async def unreachable_queue(plan):
    def changed(spec):
        return replace(spec, environment={**spec.environment, "PENSTOCK_EDGE_QUEUES": "127.0.0.1:9"})

    return replace(plan, processes=tuple(changed(each) if each.tier == "edge" else each for each in plan.processes))


async def test_a_mesh_that_is_not_ready_in_time_shows_the_logs_of_processes_that_are_not_healthy(
    tiny_model, monkeypatch
):
    monkeypatch.setattr(mesh, "START_TIMEOUT_S", 6.0)
    options = MeshOptions(base_port=0, envoy=False, workers=1, engine="sim", model=tiny_model)
    unhealthy = r"(?s)not ready after 6 s \(not healthy: edge-1\); .*\nthe end of /.*edge-1.log:\n  \| "
    with pytest.raises(TimeoutError, match=unhealthy):
        async with local_mesh(options, transform_plan=unreachable_queue):
            pass
