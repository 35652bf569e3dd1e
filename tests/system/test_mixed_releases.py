"""Processes of the previous release and of this one in one mesh: a rollout of Penstock itself."""

import asyncio

import httpx
import pytest

from mesh import greedy, read_answer, stub_client, wait_at_rest, wait_for_figures
from penstock.local_mesh.mesh import local_mesh
from penstock.local_mesh.plan import MeshOptions
from penstock.v1.inference_pb2 import Sampling
from previous_release import check_out, running_it

TIERS = ("auth", "queue", "scheduler", "worker", "edge")
STREAMS = 4
TOKENS = 200  # long enough to lose a worker amid them


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return check_out(tmp_path_factory.mktemp("previous"))


@pytest.mark.parametrize("old", [("edge",), TIERS[:-1]], ids=["its edge", "its other tiers"])
async def test_the_previous_release_and_this_one_serve_together(source, tiny_model, old):
    options = MeshOptions(base_port=0, envoy=False, workers=2, engine="sim", model=tiny_model)
    async with (
        local_mesh(options, transform_plan=running_it(source, *old)) as mesh,
        stub_client(mesh) as client,
        httpx.AsyncClient(base_url=f"http://{mesh.plan.http}", timeout=60.0) as http,
    ):
        prompts = [f"stream number {number} says" for number in range(STREAMS)]
        calm = [await read_answer(client.generate(**seeded(prompt))) for prompt in prompts]
        assert all(answer.usage_tokens == TOKENS for answer in calm)
        body = {"model": "tiny", "prompt": prompts[0], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        reply = await http.post("/v1/completions", json=body, headers=dict(client.metadata))
        assert reply.status_code == 200, reply.text
        reading = [asyncio.create_task(read_answer(client.generate(**seeded(prompt)))) for prompt in prompts]
        await kill_a_busy_worker(mesh)
        resumed = await asyncio.gather(*reading)
        assert [answer.token_ids for answer in resumed] == [answer.token_ids for answer in calm]
        assert [answer.text for answer in resumed] == [answer.text for answer in calm]
        await cancel_amid(client, prompts[0])
        await wait_at_rest(mesh)


def seeded(prompt):
    """Fields of a request whose answer is the same each time, also of a simulated engine."""
    return greedy(prompt, TOKENS) | {"sampling": Sampling(temperature=0.0, seed=1)}


async def kill_a_busy_worker(mesh):
    workers = [child for child in mesh.processes.children if child.spec.tier == "worker"]
    busy = {
        asyncio.create_task(wait_for_figures(each.spec.address, lambda found: found["running"] >= 1)): each
        for each in workers
    }
    [first, *_], others = await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
    busy[first].process.kill()
    for each in others:
        each.cancel()


async def cancel_amid(client, prompt):
    call = client.generate(**seeded(prompt))
    while (await call.read()).WhichOneof("frame") != "delta":
        pass
    call.cancel()
