"""A client that leaves at any moment, over gRPC or HTTP, leaves no state and no cost."""

import asyncio
import random

import grpc
import httpx

from mesh import greedy, running_mesh, stub_client, sum_figure, wait_at_rest, wait_for_figures
from penstock.proofs.testbed.logs import read_events

CANCEL_COUNT = 200
FIGURES_AT_REST = ("open_streams", "asyncio_tasks", "calls")
AT_ONCE = 40  # more than the slots below, so that some leave while they wait


async def leave_grpc(client, rng):
    call = client.generate(**greedy("many words " * rng.randrange(1, 30), 200))
    tokens_read = rng.choice([0, 0, 1, 2, rng.randrange(60)])
    seen = 0
    try:
        async for frame in call:
            if tokens_read == 0 or seen >= tokens_read:
                break
            seen += len(frame.delta.token_ids)
        call.cancel()
        await call.wait_for_connection()
    except (asyncio.CancelledError, grpc.aio.AioRpcError):
        assert call.cancelled()


async def leave_http(http, rng):
    body = {"prompt": "many words " * rng.randrange(1, 30), "max_tokens": 200, "stream": True, "ignore_eos": True}
    tokens_read = rng.choice([0, 1, rng.randrange(60)])
    async with http.stream("POST", "/completions", json=body) as response:
        assert response.status_code == httpx.codes.OK, await response.aread()
        lines = response.aiter_lines()
        for _ in range(tokens_read):
            await anext(lines)


async def figures_at_rest(mesh):
    """The figures of each process at rest: the streams between tiers and the tasks that serve them."""
    return {
        each.admin_address: await wait_for_figures(each.admin_address, lambda _: True) for each in mesh.plan.processes
    }


async def test_two_hundred_clients_leave_at_random_moments_and_no_state_remains(tiny_model):
    rng = random.Random(11)
    settings = ("PENSTOCK_WORKER_SLOTS=8", "PENSTOCK_WORKER_TOKEN_BUDGET=64")
    async with running_mesh(engine="sim", model=tiny_model, settings=settings) as mesh, stub_client(mesh) as client:
        headers = {"authorization": f"Bearer {mesh.api_key}"}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=f"http://{mesh.plan.http}/v1", headers=headers, limits=limits, timeout=60.0
        ) as http:
            await leave_grpc(client, rng)
            await leave_http(http, rng)
            await wait_at_rest(mesh)
            before = await figures_at_rest(mesh)
            gate = asyncio.Semaphore(AT_ONCE)

            async def leave(number):
                async with gate:
                    await (leave_http(http, rng) if number % 2 else leave_grpc(client, rng))

            await asyncio.gather(*(leave(number) for number in range(CANCEL_COUNT)))
        await wait_at_rest(mesh)
        for address, held in before.items():
            await wait_for_figures(
                address, lambda figures, held=held: all(figures[name] <= held[name] for name in FIGURES_AT_REST)
            )
        cancels, receipts = (
            await sum_figure(mesh, "edge", "cancels"),
            await sum_figure(mesh, "edge", "cancels_acknowledged"),
        )
        started = await sum_figure(mesh, "worker", "cancels")
        assert cancels > CANCEL_COUNT / 2
        left = {
            each["ticket_id"]
            for each in read_events(mesh.folder, "edge", "ticket_done")
            if each["outcome"] == "cancelled"
        }
        runs = {each["ticket_id"]: each["outcome"] for each in read_events(mesh.folder, "worker", "run_ended")}
        ended_first = sum(runs.get(each, "cancelled") != "cancelled" for each in left)  # the cancel came later
        assert receipts - ended_first == started > CANCEL_COUNT / 10  # the others left before they ran
        assert await sum_figure(mesh, "worker", "tokens_wasted_after_cancel") <= started
