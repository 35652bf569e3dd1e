"""A request that crashes its engine costs one worker two engines, and no other request a token."""

import asyncio

import grpc
import pytest

from mesh import greedy, read_answer, running_mesh, stub_client, wait_at_rest, wait_for_figures
from penstock.chassis.errors import error_from_rpc
from penstock.v1.inference_pb2 import Sampling, TokenIds

POISON_TOKEN = 300  # in no text here
SETTINGS = (f"PENSTOCK_WORKER_SIM_CRASH_TOKEN_ID={POISON_TOKEN}", "PENSTOCK_WORKER_SIM_BASE_S=0.01")


async def poison_request_is_rejected(client):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await read_answer(client.generate(token_ids=TokenIds(ids=[5, POISON_TOKEN]), max_output_tokens=4))
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert error_from_rpc(failed.value).reason == "ENGINE_CRASHED"


async def test_a_request_that_crashes_engines_is_confirmed_on_one_worker_while_all_others_finish(tiny_model):
    sampling = Sampling(temperature=0.0, seed=1)  # a simulated engine's tokens follow from the seed
    requests = [{**greedy(f"word {number}", 150), "sampling": sampling} for number in range(8)]
    async with running_mesh(engine="sim", model=tiny_model, workers=2, settings=SETTINGS) as mesh:
        async with stub_client(mesh) as client:
            baseline = [await read_answer(client.generate(**request)) for request in requests]
            others = [asyncio.create_task(read_answer(client.generate(**request))) for request in requests]
            for each in mesh.plan.processes_of("worker"):
                await wait_for_figures(each.admin_address, lambda figures: figures["running"] > 1)
            await poison_request_is_rejected(client)
            assert await asyncio.gather(*others) == baseline
            await wait_at_rest(mesh)
            await poison_request_is_rejected(client)  # before any engine has seen it
        over = [
            await wait_for_figures(each.admin_address, lambda figures: figures["restarts"] != 1)
            for each in mesh.plan.processes_of("worker")
        ]
        assert sorted(figures["restarts"] for figures in over) == [0, 2]
