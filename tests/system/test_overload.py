"""A full queue rejects at once, and its waiting requests are served."""

import asyncio

import grpc
import httpx

from mesh import greedy, read_answer, running_mesh, stub_client, wait_at_rest, wait_for_figures
from penstock.chassis.errors import Overloaded, error_from_rpc

QUEUE_DEPTH = 60  # a connection of a client carries 100 calls


async def test_a_request_above_the_queue_limit_is_rejected_at_once_and_the_others_finish(tiny_model):
    settings = (
        f"PENSTOCK_QUEUE_MAX_DEPTH={QUEUE_DEPTH}",
        "PENSTOCK_WORKER_SLOTS=1",
        "PENSTOCK_SCHEDULER_LOOK_AHEAD=0",
    )
    async with running_mesh(engine="sim", model=tiny_model, settings=settings) as mesh, stub_client(mesh) as client:
        running = asyncio.create_task(read_answer(client.generate(**greedy("the one that runs", 400))))
        worker, queue = (
            mesh.plan.processes_of("worker")[0].admin_address,
            mesh.plan.processes_of("queue")[0].admin_address,
        )
        await wait_for_figures(worker, lambda figures: figures["running"] == 1)
        waiting = [asyncio.create_task(read_answer(client.generate(**greedy("waits", 1)))) for _ in range(QUEUE_DEPTH)]
        await wait_for_figures(queue, lambda figures: figures["waiting"] == QUEUE_DEPTH)

        failure = (await asyncio.gather(read_answer(client.generate(**greedy("too many", 1))), return_exceptions=True))[
            0
        ]
        assert isinstance(failure, grpc.aio.AioRpcError)
        error = error_from_rpc(failure)
        assert (type(error), error.reason) == (Overloaded, "QUEUE_FULL")
        assert error.retry_after > 0

        async with httpx.AsyncClient(headers={"authorization": f"Bearer {mesh.api_key}"}) as http:
            answer = await http.post(f"http://{mesh.plan.http}/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert answer.json()["error"]["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
        assert float(answer.headers["retry-after-ms"]) > 0

        finished = await asyncio.gather(running, *waiting)
        assert [answer.usage_tokens for answer in finished] == [400] + [1] * QUEUE_DEPTH
        await wait_at_rest(mesh)
