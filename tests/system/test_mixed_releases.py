"""Processes of the previous release and of this one in one mesh: a rollout of Penstock itself."""

import asyncio
import io
from dataclasses import replace

import httpx
import pytest
from rich.console import Console

from mesh import greedy, read_answer, stub_client, wait_at_rest, wait_for_figures
from penstock.local_mesh.launch import local_mesh
from penstock.local_mesh.plan import MeshOptions, plan_mesh
from penstock.proofs.live.kill import KillOptions, kill
from penstock.proofs.testbed.releases import mix_releases, run_release
from penstock.v1.inference_pb2 import Sampling
from previous_release import check_out

TIERS = ("auth", "queue", "scheduler", "worker", "edge")
INSECURE = True  # the previous release has no TLS
STREAMS = 4
TOKENS = 200  # long enough to lose a worker amid them


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return check_out(tmp_path_factory.mktemp("previous"))


@pytest.mark.parametrize("old", [("edge",), TIERS[:-1]], ids=["its edge", "its other tiers"])
async def test_the_previous_release_and_this_one_serve_together(source, tiny_model, old):
    options = MeshOptions(base_port=0, envoy=False, workers=2, engine="sim", model=tiny_model, insecure=INSECURE)
    async with (
        local_mesh(options, transform_plan=running_tiers(source, *old)) as mesh,
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


@pytest.mark.parametrize("with_auth", [False, True], ids=["auth of this release", "auth of the previous one"])
async def test_kills_lose_no_token_between_peers_of_both_releases(source, tiny_model, with_auth):
    options = KillOptions(streams=6, kills=3, every=0.5, tokens=24, other_release=source, other_auth=with_auth)
    mesh = MeshOptions(engine="sim", model=tiny_model, edges=2, queues=2, schedulers=2, workers=3, insecure=INSECURE)
    card = await kill(options, mesh, Console(file=io.StringIO()))
    assert not card.void_reason
    exact = [line for line in card.lines if line.goal in ("0", "100")]
    assert len(exact) >= 10
    assert not [line for line in exact if not line.is_met], card.notes


def test_half_of_the_processes_of_each_tier_run_the_other_release(tmp_path):
    options = MeshOptions(edges=2, queues=2, schedulers=2, workers=3, envoys=2)
    plan = plan_mesh(options, tmp_path, "pk_a", envoy="envoy")
    changed = asyncio.run(mix_releases(tmp_path, with_auth=False)(plan))
    others = [each.name for each in changed.processes if each.environment.get("PYTHONPATH") == str(tmp_path)]
    assert others == ["queue-1", "scheduler-1", "worker-1", "worker-3", "edge-1", "routing-1"]
    with_auth = asyncio.run(mix_releases(tmp_path, with_auth=True)(plan))
    assert "auth" in [each.name for each in with_auth.processes if "PYTHONPATH" in each.environment]


def running_tiers(source, *tiers):
    """A change of a mesh's plan: the processes of `tiers` run the previous release."""

    async def transform(plan):
        processes = tuple(run_release(source, each) if each.tier in tiers else each for each in plan.processes)
        return replace(plan, processes=processes)

    return transform


def seeded(prompt):
    """Fields of a request whose answer is the same each time, also of a simulated engine."""
    return greedy(prompt, TOKENS) | {"sampling": Sampling(temperature=0.0, seed=1)}


async def kill_a_busy_worker(mesh):
    workers = [child for child in mesh.processes.children if child.spec.tier == "worker"]
    busy = {
        asyncio.create_task(wait_for_figures(each.spec.admin_address, lambda found: found["running"] >= 1)): each
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
