"""A mesh behind Envoy: one port for gRPC and HTTP, unbuffered streams, and detected disconnects."""

import httpx

from mesh import greedy, read_answer, running_mesh, stub_client, sum_figure, wait_at_rest, wait_for_figures

OUTPUT_TOKENS = 400  # a few seconds at the simulated engine's speed
SLOW_STEPS = ("PENSTOCK_WORKER_SIM_BASE_S=0.02",)


async def test_through_the_proxy_tokens_stream_unbuffered_and_a_disconnect_reaches_the_engine(tiny_model):
    async with running_mesh(engine="sim", model=tiny_model, envoy=True, settings=SLOW_STEPS) as mesh:
        worker = mesh.plan.processes_of("worker")[0].admin_address
        async with stub_client(mesh, mesh.plan.proxy) as client:
            assert len((await read_answer(client.generate(**greedy("short", 3)))).token_ids) == 3
            await leave_after_one_token_grpc(client, mesh)
        await wait_for_figures(worker, lambda figures: figures["cancels"] == 1 and figures["running"] == 0)
        await leave_after_one_token_http(mesh)
        await wait_for_figures(worker, lambda figures: figures["cancels"] == 2 and figures["running"] == 0)
        await wait_at_rest(mesh)
        assert await sum_figure(mesh, "worker", "tokens_generated") < OUTPUT_TOKENS


async def leave_after_one_token_grpc(client, mesh):
    call = client.generate(**greedy("long", OUTPUT_TOKENS))
    async for frame in call:
        if frame.delta.token_ids:
            break
    assert await sum_figure(mesh, "worker", "running") == 1  # the first token is here, the last is not made yet
    call.cancel()


async def leave_after_one_token_http(mesh):
    body = {"prompt": "long", "max_tokens": OUTPUT_TOKENS, "stream": True, "ignore_eos": True, "temperature": 0}
    headers = {"authorization": f"Bearer {mesh.api_key}"}
    async with (
        httpx.AsyncClient(base_url=f"http://{mesh.plan.proxy}/v1", headers=headers, timeout=30.0) as http,
        http.stream("POST", "/completions", json=body) as response,
    ):
        assert response.status_code == httpx.codes.OK, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                break
        assert await sum_figure(mesh, "worker", "running") == 1
