"""Edges that share the ports of one host: each serves a part of the connections, and one that dies is not missed."""

import asyncio

import httpx

from mesh import running_mesh, snapshot, wait_for_figures

CONNECTIONS = 60  # of which one edge of two gets none once in 10^18 runs
ANSWER = {"max_tokens": 2, "temperature": 0}


async def complete(mesh, model):
    """Make one request on a connection of its own. Returns the HTTP status."""
    headers = {"authorization": f"Bearer {mesh.api_key}"}
    async with httpx.AsyncClient(base_url=f"http://{mesh.plan.http}", headers=headers, timeout=30.0) as client:
        return (await client.post("/v1/completions", json={"model": model, "prompt": "hi", **ANSWER})).status_code


async def served_model(mesh):
    async with httpx.AsyncClient(base_url=f"http://{mesh.plan.http}") as client:
        answer = await client.get("/v1/models", headers={"authorization": f"Bearer {mesh.api_key}"})
        return answer.json()["data"][0]["id"]


async def started_at(edge):
    return (await snapshot(edge.admin_address)).figures["requests_started"]


async def test_requests_are_divided_among_the_edges_of_a_port_and_served_while_one_is_dead(tiny_model):
    async with running_mesh(edges=2, shared_edge_port=True, engine="sim", model=tiny_model, envoy=False) as mesh:
        first, second = (child.spec for child in mesh.processes.children if child.spec.tier == "edge")
        model = await served_model(mesh)
        assert (first.address, first.http) == (second.address, second.http)
        assert await asyncio.gather(*(complete(mesh, model) for _ in range(CONNECTIONS))) == [200] * 60
        counts = [await started_at(first), await started_at(second)]
        assert sum(counts) == CONNECTIONS
        assert min(counts) > 0

        dead = mesh.processes.named(second.name)
        dead.process.kill()
        await dead.process.wait()
        assert await asyncio.gather(*(complete(mesh, model) for _ in range(CONNECTIONS))) == [200] * 60
        assert await started_at(first) == counts[0] + CONNECTIONS

        await mesh.restart(second.name)
        await asyncio.gather(*(complete(mesh, model) for _ in range(CONNECTIONS)))
        await wait_for_figures(second.admin_address, lambda found: found["requests_started"] > 0)
