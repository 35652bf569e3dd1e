"""The Messages API of a real edge: answers, streams, tools, counts and errors."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from edge_http import http_edge
from edge_mesh import KEY, edge_mesh
from free_ports import free_port
from penstock.chassis.errors import Overloaded
from penstock.v1.inference_pb2 import Chat, CountTokensRequest, Message
from scripted_worker import ScriptedWorker, prompt_of

PATH, COUNT_PATH = "/v1/messages", "/v1/messages/count_tokens"
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
BODY = {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "?"}]}


@asynccontextmanager
async def mesh_and_client(text, headers=(("x-api-key", "good"),), **worker):
    port = free_port()
    scripted = ScriptedWorker("w1", text=text, **worker)
    async with (
        edge_mesh(fakes=[scripted], http_listen=f"127.0.0.1:{port}") as mesh,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=dict(headers)) as http,
    ):
        yield mesh, http, scripted


async def post(http, path=PATH, **body):
    answer = await http.post(path, json={**BODY, **body})
    return answer.status_code, answer.json()


def events_in(text):
    return [json.loads(frame.split("data: ")[1]) for frame in text.split("\n\n")[:-1]]


async def test_an_answer_of_a_caller_with_an_api_key():
    async with mesh_and_client("It rains.") as (_, http, worker):
        status, message = await post(http, system="Be brief.")
    assert status == 200
    assert message["content"] == [{"type": "text", "text": "It rains."}]
    assert (message["model"], message["stop_reason"]) == ("tiny", "end_turn")
    assert message["usage"]["input_tokens"] == len(worker.starts[-1].token_ids)
    assert prompt_of(worker).startswith("<|im_start|>system\nBe brief.<|im_end|>")


async def test_the_events_of_a_stream_in_order():
    text = "<think>\nHm.\n</think>\n\nI look." + PARIS
    async with mesh_and_client(text, template="{# </think> #}") as (_, http, _):
        answer = await http.post(PATH, json={**BODY, "tools": [TOOL], "stream": True})
    events = events_in(answer.text)
    kinds = [event["type"] for event in events]
    assert [kind for before, kind in zip(["", *kinds], kinds, strict=False) if kind != before] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    begun = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert begun == ["thinking", "text", "tool_use"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("text", "") for delta in deltas) == "I look."
    assert json.loads(deltas[-1]["partial_json"]) == {"city": "Paris"}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


async def test_a_stop_sequence_is_named():
    async with mesh_and_client("one two three") as (_, http, _):
        _, message = await post(http, stop_sequences=["two"])
    assert message["content"] == [{"type": "text", "text": "one "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "two")


async def test_a_result_is_sent_back_and_the_model_sees_the_call():
    async with mesh_and_client(PARIS) as (_, http, worker):
        _, called = await post(http, tools=[TOOL], tool_choice={"type": "any"})
        assert worker.starts[-1].HasField("form")
        (call,) = called["content"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "Rain."}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        worker.text = "It rains."
        _, message = await post(http, messages=[*BODY["messages"], *turns], tools=[TOOL])
    assert (message["content"][0]["text"], message["stop_reason"]) == ("It rains.", "end_turn")
    assert PARIS in prompt_of(worker)
    assert "<tool_response>\nRain.\n</tool_response>" in prompt_of(worker)


async def test_the_count_of_tokens_is_that_of_the_request():
    async with mesh_and_client("") as (mesh, http, worker):
        status, counted = await post(http, COUNT_PATH, tools=[TOOL])
        await post(http, tools=[TOOL])
        chat = Chat(messages=[Message(role="user", content="?")])
        plain = await mesh.inference.CountTokens(CountTokensRequest(chat=chat), metadata=KEY)
        assert (await post(http, COUNT_PATH))[1] == {"input_tokens": plain.prompt_tokens}
    assert (status, counted) == (200, {"input_tokens": len(worker.starts[-1].token_ids)})


@pytest.mark.parametrize("path", [PATH, COUNT_PATH])
async def test_callers_need_a_key(path):
    async with mesh_and_client("", headers=()) as (_, http, _):
        answer = await http.post(path, json=BODY, headers={"x-api-key": "wrong"})
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", PATH, 400, "invalid_request_error"),
        ("GET", PATH, 405, "invalid_request_error"),
        ("POST", f"{PATH}/batches", 404, "not_found_error"),
    ],
)
async def test_errors_have_the_body_of_the_api(method, path, status, kind):
    async with http_edge() as edge:
        answer = await edge.http.request(method, path, json={"messages": []})
    assert answer.status_code == status
    assert answer.json().keys() == {"type", "error"}
    assert (answer.json()["type"], answer.json()["error"]["type"]) == ("error", kind)
    assert answer.headers["request-id"] == answer.headers["x-request-id"] != ""


async def test_an_overloaded_edge_says_when_to_retry():
    async with http_edge() as edge:
        edge.gateway.rejection = Overloaded("full", retry_after=2.0)
        answer = await edge.http.post(PATH, json=BODY)
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["x-should-retry"]) == (503, "2", "true")
    assert answer.json() == {"type": "error", "error": {"type": "overloaded_error", "message": "full"}}


async def test_a_silent_stream_gets_pings_and_a_failure_is_an_error_event():
    body = {**BODY, "stream": True, "metadata": {"user_id": "u1"}}
    async with http_edge(keepalive_interval=0.01) as edge:
        sending = asyncio.create_task(edge.http.send(edge.http.build_request("POST", PATH, json=body), stream=True))
        call = await edge.gateway.call()
        call.accept()
        answer = await sending
        lines = answer.aiter_lines()
        async for line in lines:
            if line == "event: ping":
                break
        call.fail(Overloaded("full"))
        rest = [line async for line in lines]
    assert edge.gateway.sessions == ["u1"]
    assert rest[0] == 'data: {"type":"ping"}'
    assert rest[-3:] == [
        "event: error",
        'data: {"type":"error","error":{"type":"overloaded_error","message":"full"}}',
        "",
    ]
