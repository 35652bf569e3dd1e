"""`penstock drain` ends one process of a tier without an effect on active answers."""

import asyncio

import pytest

from command import run_penstock
from mesh import TIMEOUT_S, greedy, read_answer, running_mesh, stub_client, wait_at_rest, wait_for_figures
from penstock.v1.inference_pb2 import Sampling

SLOW = ("PENSTOCK_WORKER_SIM_BASE_S=0.02",)  # answers that outlast a few drains
SLOWER = ("PENSTOCK_WORKER_SIM_BASE_S=0.06",)  # an answer that outlasts the start of a command on a busy machine
TOKENS = 120


def seeded(tokens=TOKENS):
    """A request whose answer is the same each time: a simulated engine's tokens follow from its seed."""
    return greedy("hello", tokens) | {"sampling": Sampling(temperature=0.0, seed=7)}


@pytest.mark.parametrize("tier", ["worker", "queue", "scheduler"])
async def test_a_drained_process_exits_with_0_while_answers_continue(tiny_model, tier):
    mesh_of_two = {"queues": 2, "schedulers": 2, "workers": 2, "engine": "sim", "model": tiny_model, "settings": SLOW}
    async with running_mesh(**mesh_of_two) as mesh, stub_client(mesh) as client:
        edge = mesh.plan.processes_of("edge")[0].admin_address
        expected = await read_answer(client.generate(**seeded()))
        answers = [asyncio.create_task(read_answer(client.generate(**seeded()))) for _ in range(8)]
        await wait_for_figures(edge, lambda figures: figures["active_requests"] == len(answers))
        victim = mesh.processes.named(f"{tier}-2")
        code, output, _ = await run_penstock("drain", tier, "--target", victim.spec.admin_address)
        assert (code, output.split(";")[0]) == (0, f"{victim.spec.admin_address} is draining")
        async with asyncio.timeout(TIMEOUT_S):
            assert await victim.process.wait() == 0
        assert [each.token_ids for each in await asyncio.gather(*answers)] == [expected.token_ids] * len(answers)
        after = await read_answer(client.generate(**seeded(4)))
        assert after.token_ids == expected.token_ids[:4]
        await wait_at_rest(mesh)


async def test_a_drained_edge_finishes_its_answers_first(tiny_model):
    async with running_mesh(edges=2, engine="sim", model=tiny_model, settings=SLOWER) as mesh:
        victim = mesh.processes.named("edge-2")
        async with stub_client(mesh, victim.spec.address) as client:
            answer = asyncio.create_task(read_answer(client.generate(**seeded())))
            await wait_for_figures(victim.spec.admin_address, lambda figures: figures["active_requests"] == 1)
            code, output, _ = await run_penstock("drain", "edge", "--target", victim.spec.admin_address)
            assert code == 0
            assert output == f"{victim.spec.admin_address} is draining; active calls and streams: 1\n"
            assert (await answer).indexes == list(range(TOKENS))
            async with asyncio.timeout(TIMEOUT_S):
                assert await victim.process.wait() == 0
        await wait_at_rest(mesh)
