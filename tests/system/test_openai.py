"""The unmodified OpenAI client against a whole mesh with a real model."""

import json
from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from mesh import running_mesh, snapshot, sum_figure, wait_at_rest

CONTEXT_TOKENS = 512  # of the tiny model
GREETING = [{"role": "user", "content": "hi"}]
GREEDY = {"temperature": 0.0, "extra_body": {"ignore_eos": True, "a_field_nobody_knows": {"of": ["any", "shape"]}}}


@asynccontextmanager
async def client(mesh, key=""):
    base_url = f"http://{mesh.plan.proxy or mesh.plan.http}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key=key or mesh.api_key, max_retries=0) as api:
        yield api


@pytest.mark.parametrize("entry", ["edge", "envoy"])
async def test_the_openai_client_streams_and_receives_its_own_error_types(tiny_model, entry):
    async with running_mesh(engine="torch", model=tiny_model, envoy=entry == "envoy") as mesh:
        async with client(mesh) as api:
            model = await the_only_model(api)
            text = await a_response_is_streamed(api, model)
            assert await the_same_response_is_whole(api, model) == text
            await a_chat_is_streamed(api, model)
            await a_long_prompt_is_rejected_with_its_numbers(api, model)
            await a_client_that_leaves_frees_the_engine(api, model, mesh)
        await a_wrong_key_is_rejected(mesh, model)
        await wait_at_rest(mesh)


async def the_only_model(api):
    listed = await api.models.list()
    assert len(listed.data) == 1
    assert (await api.models.retrieve(listed.data[0].id)).id == listed.data[0].id
    return listed.data[0].id


async def a_response_is_streamed(api, model):
    stream = await api.responses.create(model=model, input="hi", stream=True, **GREEDY)
    events = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "".join(deltas)
    usage = last.response.usage
    assert usage.input_tokens > 0
    assert usage.output_tokens > len(deltas) / 2
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    return last.response.output_text


async def the_same_response_is_whole(api, model):
    response = await api.responses.create(model=model, input="hi", **GREEDY)
    assert response.status == "completed"
    return response.output_text


async def a_chat_is_streamed(api, model):
    stream = await api.chat.completions.create(
        model=model,
        messages=GREETING,
        max_completion_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 24)


async def a_long_prompt_is_rejected_with_its_numbers(api, model):
    with pytest.raises(openai.BadRequestError) as failure:
        await api.responses.create(model=model, input="word " * 2 * CONTEXT_TOKENS, stream=True)
    assert failure.value.code == "context_length_exceeded"
    assert f"do not fit the context of {CONTEXT_TOKENS} tokens" in str(failure.value)


async def a_client_that_leaves_frees_the_engine(api, model, mesh):
    stream = await api.completions.create(model=model, prompt="hi", max_tokens=400, stream=True, **GREEDY)
    await anext(aiter(stream))
    await stream.close()
    await wait_at_rest(mesh)
    assert await sum_figure(mesh, "edge", "cancels") == await sum_figure(mesh, "edge", "cancels_acknowledged") == 1


async def a_wrong_key_is_rejected(mesh, model):
    async with client(mesh, key="sk-wrong") as api:
        for stream in (True, False):
            with pytest.raises(openai.AuthenticationError) as failure:
                await api.chat.completions.create(model=model, messages=GREETING, stream=stream)
            assert failure.value.code == "invalid_api_key"


@pytest.mark.parametrize("entry", ["edge", "envoy"])
async def test_the_death_of_an_edge_is_an_error_and_never_a_shorter_answer(tiny_model, entry):
    """The OpenAI client cannot resume at another edge; it must not mistake part of an answer for all of it."""
    slow = ("PENSTOCK_WORKER_SIM_BASE_S=0.05",)
    options = {"engine": "sim", "model": tiny_model, "settings": slow, "envoy": entry == "envoy", "edges": 2}
    async with running_mesh(**options) as mesh, client(mesh) as api:
        stream = await api.completions.create(model="", prompt="hi", max_tokens=400, stream=True, **GREEDY)
        chunks = aiter(stream)
        await anext(chunks)
        for child in mesh.processes.children:
            if child.spec.tier == "edge" and (await snapshot(child.spec.admin_address)).figures["active_requests"]:
                child.process.kill()
        with pytest.raises((openai.APIError, httpx.TransportError)):
            [chunk async for chunk in chunks]


async def test_an_edge_with_a_stop_request_ends_its_streams_first(tiny_model):
    async with running_mesh(engine="torch", model=tiny_model) as mesh, client(mesh) as api:
        edge = next(child for child in mesh.processes.children if child.spec.tier == "edge")
        stream = await api.completions.create(model="", prompt="hi", max_tokens=400, stream=True, **GREEDY)
        chunks = aiter(stream)
        await anext(chunks)
        edge.process.terminate()
        rest = [chunk async for chunk in chunks]
        assert await edge.process.wait() == 0
        log = [json.loads(line) for line in edge.log.read_text().splitlines()]
    assert rest[-1].choices[0].finish_reason == "length"
    events = [line["event"] for line in log]
    assert events.index("stop_requested") < events.index("ticket_done") < events.index("http_drained")
    assert {line["level"] for line in log} == {"info"}
