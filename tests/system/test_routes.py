"""Routes of models in a mesh of real processes: the command line, the unmodified OpenAI client, changes under load."""

import asyncio
from collections import Counter
from dataclasses import replace

import openai

from command import run_models
from mesh import TIMEOUT_S, running_mesh, wait_at_rest

SECOND = "second"
CALLERS, CHANGES = 4, 12


def client(mesh):
    return openai.AsyncOpenAI(base_url=f"http://{mesh.plan.http}/v1", api_key=mesh.api_key, max_retries=0)


async def wait_for_models(api, *names):
    async with asyncio.timeout(TIMEOUT_S):
        while [each.id for each in (await api.models.list()).data] != sorted(names):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)


async def serve_second_model(mesh):
    """Restart the last worker with a name of its own for its model."""
    child = next(each for each in mesh.processes.children if each.spec.name == "worker-2")
    child.process.kill()
    await child.process.wait()
    environment = {**child.spec.environment, "PENSTOCK_WORKER_SERVED_NAME": SECOND}
    await mesh.restart("worker-2", spec=replace(child.spec, environment=environment))


async def model_of(api, **more):
    """Run a request of the route to its end. Return the model of the response."""
    response = await api.responses.create(model="gpt-4o", input="hi", max_output_tokens=4, **more)
    assert response.usage.output_tokens > 0
    return response.model


async def test_a_name_of_another_service_is_served_after_one_command(tiny_model):
    async with running_mesh(engine="sim", model=tiny_model) as mesh, client(mesh) as api:
        [own] = [each.id for each in (await api.models.list()).data]
        await run_models(mesh, "route", "gpt-4o", "--to", own)
        await wait_for_models(api, own, "gpt-4o")
        stream = await api.responses.create(model="gpt-4o", input="Explain backpressure in simple terms", stream=True)
        events = [event async for event in stream]
        assert events[-1].response.output_text == "".join(
            event.delta for event in events if event.type == "response.output_text.delta"
        )
        assert events[-1].response.model == own
        assert (await api.models.retrieve("gpt-4o")).model_extra["route"] == {own: 1}
        await run_models(mesh, "unroute", "gpt-4o")
        await wait_for_models(api, own)
        await wait_at_rest(mesh)


async def test_changes_under_load_fail_no_request(tiny_model):
    async with running_mesh(engine="sim", model=tiny_model, workers=2) as mesh, client(mesh) as api:
        [own] = [each.id for each in (await api.models.list()).data]
        await serve_second_model(mesh)
        await run_models(mesh, "split", "gpt-4o", f"{own}=1", f"{SECOND}=1")
        await wait_for_models(api, own, SECOND, "gpt-4o")
        served, is_changing = Counter(), True

        async def call():
            while is_changing:
                served[await model_of(api)] += 1

        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(call())
            for number in range(CHANGES):
                changes = [
                    ["split", "gpt-4o", f"{own}={95 - number}", f"{SECOND}=5"],
                    ["promote", "gpt-4o", SECOND],
                    ["rollback", "gpt-4o"],
                ]
                await run_models(mesh, *changes[number % len(changes)])
            is_changing = False
        assert served.keys() == {own, SECOND}
        await wait_at_rest(mesh)


async def test_a_fallback_takes_over_when_the_worker_of_the_target_is_killed(tiny_model):
    async with running_mesh(engine="sim", model=tiny_model, workers=2) as mesh, client(mesh) as api:
        [own] = [each.id for each in (await api.models.list()).data]
        await serve_second_model(mesh)
        await run_models(mesh, "route", "gpt-4o", "--to", SECOND, "--fallback", own)
        await wait_for_models(api, own, SECOND, "gpt-4o")
        assert await model_of(api) == SECOND
        next(each for each in mesh.processes.children if each.spec.name == "worker-2").process.kill()
        async with asyncio.timeout(TIMEOUT_S):
            while await model_of(api, timeout=TIMEOUT_S) != own:
                pass
