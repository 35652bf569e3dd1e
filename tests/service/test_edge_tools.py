"""Tools through a whole edge: from the body of a request to the engine's frame, and from tokens to calls."""

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest
from pydantic import BaseModel

from edge_mesh import KEY, TIMEOUT_S, edge_mesh
from free_ports import free_port
from penstock.edge.output.answer import call_id
from penstock.v1.inference_pb2 import (
    TOOL_MODE_NAMED,
    Chat,
    GenerateRequest,
    Message,
    Resume,
    Tool,
    ToolCall,
    ToolChoice,
)
from scripted_worker import ScriptedWorker, prompt_of

QUESTION = [{"role": "user", "content": "?"}]
PARIS = '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "Paris"}}\n</tool_call>'


class GetWeather(BaseModel):
    city: str


CHAT_TOOLS = [openai.pydantic_function_tool(GetWeather)]
RESPONSE_TOOLS = [{"type": "function", **CHAT_TOOLS[0]["function"]}]


@asynccontextmanager
async def mesh_and_client(**worker):
    port = free_port()
    scripted = ScriptedWorker("w1", **{"text": PARIS, **worker})
    async with (
        edge_mesh(fakes=[scripted], http_listen=f"127.0.0.1:{port}") as mesh,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="good", max_retries=0) as api,
    ):
        yield mesh, api, scripted


async def test_the_helpers_of_the_client_read_calls_of_chats():
    async with mesh_and_client() as (_, api, worker):
        request = {"model": "tiny", "messages": QUESTION, "tools": CHAT_TOOLS}
        async with api.chat.completions.stream(**request) as stream:
            types = {event.type async for event in stream}
            streamed = (await stream.get_final_completion()).choices[0]
        parsed = (await api.chat.completions.parse(**request)).choices[0]
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= types
    for choice in (streamed, parsed):
        assert (choice.finish_reason, len(choice.message.tool_calls)) == ("tool_calls", 1)
        assert choice.message.tool_calls[0].function.parsed_arguments == GetWeather(city="Paris")
    assert '"name": "GetWeather"' in prompt_of(worker)
    assert "before[suffix=" in worker.starts[-1].form.lark  # pydantic_function_tool makes strict tools


async def test_tools_that_are_not_strict_are_not_enforced():
    function = {"name": "GetWeather", "parameters": CHAT_TOOLS[0]["function"]["parameters"]}
    async with mesh_and_client() as (_, api, worker):
        tools = [{"type": "function", "function": function}]
        answer = await api.chat.completions.create(model="tiny", messages=QUESTION, tools=tools)
    assert len(answer.choices[0].message.tool_calls) == 1
    assert not worker.starts[-1].HasField("form")


async def test_the_helpers_of_the_client_read_calls_of_responses():
    async with mesh_and_client() as (_, api, _):
        request = {"model": "tiny", "input": QUESTION, "tools": RESPONSE_TOOLS}
        async with api.responses.stream(**request) as stream:
            types = {event.type async for event in stream}
            streamed = await stream.get_final_response()
        parsed = await api.responses.parse(**request)
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= types
    for response in (streamed, parsed):
        (call,) = response.output
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "GetWeather", {"city": "Paris"})


async def test_a_result_is_sent_back_and_the_model_sees_the_call():
    async with mesh_and_client() as (_, api, worker):
        request = {"model": "tiny", "tools": CHAT_TOOLS}
        message = (await api.chat.completions.create(messages=QUESTION, **request)).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain."}
        worker.text = "It rains."
        answer = await api.chat.completions.create(messages=[*QUESTION, message, result], **request)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("It rains.", "stop")
    assert PARIS in prompt_of(worker)
    assert "<tool_response>\nRain.\n</tool_response>" in prompt_of(worker)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "GetWeather"}}])
async def test_a_required_or_named_tool_is_enforced_by_the_engine(choice):
    async with mesh_and_client() as (_, api, worker):
        answer = await api.chat.completions.create(
            model="tiny", messages=QUESTION, tools=CHAT_TOOLS, tool_choice=choice
        )
    assert '"{\\"name\\": \\"GetWeather\\", \\"arguments\\": "' in worker.starts[-1].form.lark
    assert answer.choices[0].message.tool_calls[0].function.name == "GetWeather"


async def test_tools_are_hidden_if_none_may_be_called():
    async with mesh_and_client(text="No.") as (_, api, worker):
        await api.chat.completions.create(model="tiny", messages=QUESTION, tools=CHAT_TOOLS, tool_choice="none")
    assert "GetWeather" not in prompt_of(worker)


async def test_a_schema_that_cannot_be_enforced_is_rejected_before_the_request_waits():
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "propertyNames": {"pattern": "x"}}}
    async with mesh_and_client() as (mesh, api, _):
        with pytest.raises(openai.BadRequestError, match="propertyNames"):
            await api.chat.completions.create(
                model="tiny",
                messages=QUESTION,
                tools=[{"type": "function", "function": function}],
                tool_choice="required",
            )
        assert mesh.queue.tickets == []


async def test_reasoning_of_a_plain_chat_is_split_by_the_template_of_the_model():
    text = "<think>\nHm.\n</think>\n\nTwo."
    async with mesh_and_client(text=text, template="{# </think> #}") as (_, api, _):
        stream = await api.chat.completions.create(model="tiny", messages=QUESTION, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        response = await api.responses.create(model="tiny", input=QUESTION)
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.content or "" for delta in deltas) == "Two."
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert (response.output[0].content[0].text, response.output_text) == ("Hm.", "Two.")


def grpc_request(**fields):
    chat = Chat(messages=[Message(role="user", content="?")], tools=[Tool(name="GetWeather")])
    return GenerateRequest(chat=chat, **fields)


async def responses_of(mesh, request):
    async with asyncio.timeout(TIMEOUT_S):
        return [each async for each in mesh.inference.Generate(request, metadata=KEY, timeout=TIMEOUT_S)]


async def test_grpc_returns_the_raw_text_and_the_calls_at_the_end():
    async with mesh_and_client(text=f"So: {PARIS}") as (mesh, _, _):
        frames = await responses_of(mesh, grpc_request())
        plain = await responses_of(mesh, GenerateRequest(text="?"))
    answer_id = frames[0].accepted.answer_id
    assert "".join(frame.delta.text for frame in frames) == f"So: {PARIS}"
    assert list(frames[-1].finished.tool_calls) == [
        ToolCall(id=call_id(answer_id, 0), name="GetWeather", arguments='{"city": "Paris"}')
    ]
    assert not plain[-1].finished.tool_calls


async def test_a_resumed_answer_has_the_same_calls_with_the_same_ids():
    async with mesh_and_client() as (mesh, _, _):
        first = await responses_of(mesh, grpc_request(sampling={"seed": 7}))
        ids = [token for frame in first for token in frame.delta.token_ids]
        resume = Resume(token_ids=ids[:20], answer_id=first[0].accepted.answer_id)
        second = await responses_of(mesh, grpc_request(sampling={"seed": 7}, resume=resume))
    assert second[-1].finished.tool_calls == first[-1].finished.tool_calls != []


async def test_grpc_enforces_a_named_tool():
    request = grpc_request()
    request.chat.tool_choice.CopyFrom(ToolChoice(mode=TOOL_MODE_NAMED, name="GetWeather"))
    async with mesh_and_client() as (mesh, _, worker):
        await responses_of(mesh, request)
    assert worker.starts[-1].HasField("form")
