"""The OpenAI API over a real server and real connections, read by the unmodified OpenAI client and by a plain one."""

import asyncio
import json

import httpx
import openai
import pytest

from edge_http import FakeGateway, http_edge, without_store
from openai_calls import CREATE, PATHS, next_text, text_in, text_of
from otlp_receiver import attributes_of
from penstock.chassis.errors import (
    Unavailable,
)
from penstock.chassis.lifecycle import request_stop
from penstock.edge.api.http.app import OpenAIApp
from penstock.edge.output.answer import OutputFormat
from penstock.edge.output.formats import HERMES, LLAMA
from penstock.edge.upstreams.batches import BatchClient


@pytest.mark.parametrize("path", PATHS)
async def test_the_openai_client_receives_each_delta_before_the_next_is_generated(path):
    async with http_edge() as edge:
        pending = asyncio.create_task(CREATE[path](edge.api, stream=True))
        call = await edge.gateway.call()
        call.accept()
        async with await pending as events:
            for text in ("Wa", "ter", " é🙂"):
                call.send(text)
                assert await next_text(events) == text
            call.finish()
            rest = [event async for event in events]
        await call.wait_left()
    assert all(not text_in(event) for event in rest)
    if path == "/v1/responses":
        assert rest[-1].type == "response.completed"
        assert rest[-1].response.output_text == "Water é🙂"
        assert (rest[-1].response.usage.input_tokens, rest[-1].response.usage.output_tokens) == (3, 3)
    else:
        assert rest[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("path", PATHS)
async def test_the_openai_client_gets_a_whole_answer_with_its_usage(path):
    async with http_edge() as edge:
        pending = asyncio.create_task(CREATE[path](edge.api))
        call = await edge.gateway.call()
        call.accept()
        call.send("Wa", "ter")
        call.finish()
        answer = await pending
        await call.wait_left()
    assert text_of(answer) == "Water"
    assert answer.usage.total_tokens == 5
    assert answer.model == "tiny"


async def test_deltas_are_written_where_they_arrive_while_the_client_reads():
    async with http_edge() as edge, edge.accepted_stream() as (response, call):
        call.send("a", "b", "c")
        call.finish()
        lines = [line async for line in response.aiter_lines() if line.startswith("data: {")]
    assert [json.loads(line[6:])["choices"][0]["text"] for line in lines] == ["a", "b", "c", ""]


async def test_deltas_that_arrive_before_the_stream_has_begun_are_merged():
    async with http_edge() as edge:
        body = {"prompt": "hi", "stream": True}
        pending = asyncio.create_task(edge.http.post("/v1/completions", json=body))
        call = await edge.gateway.call()
        call.accept()
        call.send("a", "b", "c")
        call.finish()
        lines = [line for line in (await pending).text.splitlines() if line.startswith("data: {")]
    assert [json.loads(line[6:])["choices"][0]["text"] for line in lines] == ["abc", ""]


async def test_a_request_that_is_accepted_again_for_another_version_begins_its_stream_once():
    async with http_edge() as edge, edge.accepted_stream() as (response, call):
        call.accept()
        call.send("a")
        call.finish()
        lines = [line async for line in response.aiter_lines() if line.startswith("data: {")]
    assert [json.loads(line[6:])["choices"][0]["text"] for line in lines] == ["a", ""]


async def test_text_is_divided_by_the_format_of_the_model_that_answers_in_the_end():
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "stream": True}
    async with http_edge() as edge:
        request = edge.http.build_request("POST", "/v1/chat/completions", json=body)
        sent = asyncio.create_task(edge.http.send(request, stream=True))
        call = await edge.gateway.call()
        call.stream.output_format = lambda: OutputFormat(frozenset({"f"}), HERMES)
        call.accept()
        response = await sent
        call.stream.output_format = lambda: OutputFormat(frozenset({"f"}), LLAMA)
        call.accept()
        call.send('{"name": "f", ', '"parameters": {}}')
        call.finish()
        lines = [line async for line in response.aiter_lines() if line.startswith("data: {")]
    chunks = [json.loads(line[6:])["choices"][0] for line in lines]
    assert [chunk["delta"].get("tool_calls", [{}])[0].get("function") for chunk in chunks] == [
        None,
        {"name": "f", "arguments": ""},
        {"arguments": "{}"},
        None,
    ]
    assert chunks[-1]["finish_reason"] == "tool_calls"


async def test_a_stream_has_headers_against_buffering():
    async with http_edge() as edge, edge.accepted_stream() as (response, call):
        call.finish()
        await response.aread()
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "server" not in response.headers


async def test_models_are_listed_and_shown_even_with_a_slash_in_the_name():
    async with http_edge() as edge:
        listed = await edge.api.models.list()
        shown = await edge.http.get("/v1/models/org/tiny")
        missing = await edge.http.get("/v1/models/huge")
        head = await edge.http.head("/v1/models")
    assert [model.id for model in listed.data] == ["org/tiny", "tiny"]
    assert (shown.json()["id"], shown.json()["max_model_len"]) == ("org/tiny", 64)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert missing.json()["error"]["message"].startswith("no worker serves a model called 'huge';")
    assert (head.status_code, head.content) == (200, b"")


async def test_a_request_is_a_server_span_and_carries_its_caller_trace_and_id(receiver):
    trace_id = "0af7651916cd43dd8448eb211c80319d"
    traceparent = f"00-{trace_id}-b7ad6b7169203331-01"
    headers = {"authorization": "Bearer k1", "traceparent": traceparent, "x-request-id": "mine:1"}
    async with http_edge() as edge:
        edge.http.headers.update(headers)
        async with edge.accepted_stream() as (response, call):
            call.finish()
            await response.aread()
    assert (call.credential.bearer, call.credential.loopback) == ("k1", True)
    [span] = await asyncio.to_thread(receiver.wait_for_spans, "POST /v1/completions", trace_id=trace_id)
    assert (span.kind, span.status, span.parent_id) == ("SERVER", "UNSET", "b7ad6b7169203331")
    assert span.attributes["http.response.status_code"] == 200
    assert call.traceparent == f"00-{trace_id}-{span.span_id}-01"
    assert call.spec.request_id == response.headers["x-request-id"] == "mine:1"


async def test_the_deadline_of_the_openai_client_reaches_the_gateway():
    async with http_edge() as edge:
        options = [
            {"timeout": 7.0},
            {"timeout": 7.0, "stream": True},
            {"extra_headers": {"x-request-timeout-ms": "90"}},
        ]
        for each in options:
            creating = asyncio.create_task(edge.api.completions.create(model="tiny", prompt="hi", **each))
            call = await edge.gateway.call()
            call.accept()
            call.finish()
            await creating
        wrong = await edge.http.post("/v1/completions", json={"prompt": "hi"}, headers={"x-request-timeout-ms": "soon"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-request-timeout-ms")
        assert edge.gateway.times_left == [7.0, None, 0.09]


async def test_a_request_without_a_usable_id_gets_one():
    async with http_edge() as edge:
        edge.http.headers["x-request-id"] = "not / one"
        async with edge.accepted_stream() as (response, call):
            call.finish()
            await response.aread()
        health = await edge.http.get("/health")
    assert response.headers["x-request-id"] == call.spec.request_id
    assert len(call.spec.request_id) == len(health.headers["x-request-id"]) == 32


async def test_the_address_of_a_caller_behind_a_proxy_is_the_one_that_the_proxy_reports():
    async with http_edge() as edge:
        await edge.http.get("/v1/models")
        await edge.http.get("/v1/models", headers={"x-forwarded-for": "203.0.113.9"})
    assert [each.loopback for each in edge.gateway.credentials] == [True, False]


async def test_a_stream_that_fails_midway_ends_in_an_error_that_the_client_raises():
    async with http_edge() as edge:
        pending = asyncio.create_task(CREATE["/v1/chat/completions"](edge.api, stream=True))
        call = await edge.gateway.call()
        call.accept()
        async with await pending as events:
            call.send("Wa")
            assert await next_text(events) == "Wa"
            call.fail(Unavailable("every worker is gone", reason="ATTEMPTS_EXHAUSTED"))
            with pytest.raises(openai.APIError, match="every worker is gone"):
                await next_text(events)
        await call.wait_left()


async def test_a_response_that_fails_midway_ends_in_its_failed_event():
    async with http_edge() as edge:
        pending = asyncio.create_task(CREATE["/v1/responses"](edge.api, stream=True))
        call = await edge.gateway.call()
        call.accept()
        async with await pending as events:
            call.send("Wa")
            call.fail(Unavailable("every worker is gone", reason="ATTEMPTS_EXHAUSTED"))
            last = [event async for event in events][-1]
    assert last.type == "response.failed"
    assert last.response.error.message == "every worker is gone"
    assert last.response.output_text == "Wa"


async def test_health_follows_readiness():
    ready, responses, gateway = [], [], FakeGateway()
    front = OpenAIApp(gateway, without_store(gateway), BatchClient(()), lambda: bool(ready))
    async with httpx.AsyncClient(base_url="http://edge", transport=httpx.ASGITransport(front)) as http:
        responses.append(await http.get("/health"))
        ready.append(True)
        responses.append(await http.get("/health"))
        request_stop("test")
        responses.append(await http.get("/health"))
    assert [(each.status_code, each.json()["status"]) for each in responses] == [
        (503, "starting"),
        (200, "serving"),
        (503, "draining"),
    ]


def counted(receiver):
    """Return (method, route, status) of every recorded request."""
    names = ("http.request.method", "http.route", "http.response.status_code")
    points = receiver.wait_for_metric("http.server.request.duration").histogram.data_points
    labels = [attributes_of(point.attributes) for point in points]
    return {tuple(each.get(name) for name in names) for each in labels}


async def test_metric_labels_cannot_be_created_by_callers(receiver):
    async with http_edge() as edge:
        await edge.http.get("/v1/models/org/tiny")
        await edge.http.get("/v1/models/huge")
        await edge.http.request("PURGE", "/v1/models/tiny")
        await edge.http.get("/pot")
    model = "/v1/models/{name}"
    expected = {("GET", model, 200), ("GET", model, 404), ("_OTHER", model, 405), ("GET", None, 404)}
    for _ in range(20):
        if expected <= counted(receiver):
            return
        receiver.wait_for_export()
    assert expected <= counted(receiver)


@pytest.mark.parametrize("path", PATHS)
async def test_a_conversation_is_named_by_a_header_or_a_field_of_the_body(path):
    given = [{}, {"extra_body": {"user": "one"}}, {"extra_headers": {"X-Session-Affinity": "two"}}]
    async with http_edge() as edge:
        for more in given:
            pending = asyncio.create_task(CREATE[path](edge.api, **more))
            call = await edge.gateway.call()
            call.accept()
            call.finish()
            await pending
            await call.wait_left()
        assert edge.gateway.sessions == ["", "one", "two"]
