"""Answers with tool calls and reasoning, read by the helpers of the unmodified OpenAI client."""

import json

import httpx2
import openai
import pytest
from pydantic import BaseModel

from penstock.chassis.errors import Unavailable
from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.api.openai.chat import parse_chat
from penstock.edge.api.openai.responses.response import parse_response
from penstock.edge.api.openai.serializers import chat_serializer, responses_serializer
from penstock.edge.output.answer import OutputFormat, call_id
from penstock.edge.output.formats import HERMES, THINK
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Accepted, Delta, Finished, Usage


class GetWeather(BaseModel):
    city: str


ACCEPTED = Accepted(request_id="r1", model="m", prompt_tokens=3, answer_id="a1")
USAGE = Usage(prompt_tokens=3, output_tokens=40)
OUTPUT = OutputFormat(frozenset({"GetWeather"}), HERMES, reasoning=THINK)
CALL = '<tool_call>\n{"name": "GetWeather", "arguments": {"city": "%s"}}\n</tool_call>'
ANSWER = f"<think>\nLook it up.\n</think>\n\nLet me see.\n{CALL % 'Paris'}\n{CALL % 'Rome'}"
GREETING = [{"role": "user", "content": "Weather?"}]
CHAT_TOOLS = [openai.pydantic_function_tool(GetWeather)]
RESPONSE_TOOLS = [{"type": "function", **CHAT_TOOLS[0]["function"]}]
SERIALIZERS = {
    "/v1/chat/completions": (parse_chat, chat_serializer),
    "/v1/responses": (parse_response, responses_serializer),
}


def client(text=ANSWER, reason=FINISH_REASON_STOP, error=None, size=3):
    """The real client over a transport that serves the output of the pure functions, `size` characters in a delta."""

    def served(request):
        parse, new_serializer = SERIALIZERS[request.url.path]
        parsed = parse(parse_body(request.content), "r1")
        answer = new_serializer(parsed, created=1_700_000_000, output=OUTPUT)
        finished = Finished(reason=reason, usage=USAGE)
        if not parsed.stream:
            return httpx2.Response(200, content=answer.whole(ACCEPTED, text, finished))
        deltas = [Delta(text=text[at : at + size], token_ids=[at]) for at in range(0, len(text), size)]
        stream = answer.begin(ACCEPTED) + b"".join(map(answer.delta, deltas))
        stream += answer.finish(finished) if error is None else answer.fail(error)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    transport = httpx2.Client(transport=httpx2.MockTransport(served))
    return openai.OpenAI(api_key="k", base_url="http://edge/v1", max_retries=0, http_client=transport)


def parsed_cities(calls):
    return [call.parsed_arguments for call in calls]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_chat_stream_helper_parses_the_calls_of_a_stream(size):
    with (
        client(size=size) as api,
        api.chat.completions.stream(model="m", messages=GREETING, tools=CHAT_TOOLS) as stream,
    ):
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.index) for event in done] == [("GetWeather", 0), ("GetWeather", 1)]
    assert [event.parsed_arguments for event in done] == [GetWeather(city="Paris"), GetWeather(city="Rome")]
    assert final.finish_reason == "tool_calls"
    assert final.message.content == "Let me see."
    assert final.message.reasoning_content == "Look it up."
    assert [call.id for call in final.message.tool_calls] == [call_id("a1", 0), call_id("a1", 1)]


def test_arguments_of_a_chat_stream_arrive_in_deltas():
    with client(size=4) as api:
        chunks = list(api.chat.completions.create(model="m", messages=GREETING, tools=CHAT_TOOLS, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    first = [call for call in calls if call.index == 0]
    assert [(call.id, call.type, call.function.name) for call in first if call.id] == [
        (call_id("a1", 0), "function", "GetWeather")
    ]
    assert len(first) > 4
    assert "".join(call.function.arguments for call in first) == '{"city": "Paris"}'


def test_the_chat_parse_helper_reads_a_whole_answer():
    with client() as api:
        choice = api.chat.completions.parse(model="m", messages=GREETING, tools=CHAT_TOOLS).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert choice.message.reasoning_content == "Look it up."
    assert [each.function.parsed_arguments for each in choice.message.tool_calls] == [
        GetWeather(city="Paris"),
        GetWeather(city="Rome"),
    ]


def test_an_answer_of_calls_only_has_no_content():
    with client(CALL % "Paris") as api:
        message = api.chat.completions.create(model="m", messages=GREETING, tools=CHAT_TOOLS).choices[0].message
    assert (message.content, len(message.tool_calls)) == (None, 1)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_response_stream_helper_parses_the_calls_of_a_stream(size):
    with (
        client(size=size) as api,
        api.responses.stream(model="m", input=GREETING, tools=RESPONSE_TOOLS) as stream,
    ):
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (final.output[0].content[0].text, final.output_text) == ("Look it up.", "Let me see.")
    calls = final.output[2:]
    assert [call.call_id for call in calls] == [call_id("a1", 0), call_id("a1", 1)]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert {item.status for item in final.output} == {"completed"}
    assert len({item.id for item in final.output}) == 4
    for index, item in enumerate(final.output):
        added = [each for each in events if each.type == "response.output_item.added" and each.output_index == index]
        done = [each for each in events if each.type == "response.output_item.done" and each.output_index == index]
        assert [each.item.id for each in added] == [each.item.id for each in done] == [item.id]
    deltas = [each.delta for each in events if each.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == "".join(call.arguments for call in calls)
    assert "".join(each.delta for each in events if each.type == "response.reasoning_text.delta") == "Look it up."


def test_a_whole_response_equals_the_last_event_of_a_streamed_one():
    with client() as api:
        request = {"model": "m", "input": GREETING, "tools": RESPONSE_TOOLS, "tool_choice": "required"}
        complete = api.responses.create(**request)
        last = list(api.responses.create(**request, stream=True))[-1]
        parsed = api.responses.parse(**request)
    assert complete == last.response
    assert (complete.tool_choice, complete.tools[0].name, complete.tools[0].strict) == ("required", "GetWeather", True)
    assert [json.loads(call.arguments) for call in parsed.output[2:]] == [{"city": "Paris"}, {"city": "Rome"}]


def test_the_output_of_an_answer_can_be_sent_back_as_input():
    with client() as api:
        output = api.responses.create(model="m", input=GREETING, tools=RESPONSE_TOOLS).output
        message = api.chat.completions.create(model="m", messages=GREETING, tools=CHAT_TOOLS).choices[0].message
    items = [item.model_dump() for item in output]
    response = parse_response(parse_body(json.dumps({"input": items}).encode()), "r1").spec.input
    chat = parse_chat(parse_body(json.dumps({"messages": [message.model_dump()]}).encode()), "r1").spec.input
    assert response.messages == chat.messages
    assert (chat.messages[0].reasoning, len(chat.messages[0].tool_calls)) == ("Look it up.", 2)


@pytest.mark.parametrize("size", [1, 1000])
def test_text_after_a_call_is_another_message(size):
    with client(f"One.{CALL % 'Paris'}Two.", size=size) as api:
        last = list(api.responses.create(model="m", input=GREETING, tools=RESPONSE_TOOLS, stream=True))[-1]
        complete = api.responses.create(model="m", input=GREETING, tools=RESPONSE_TOOLS)
    assert complete == last.response
    assert [item.type for item in complete.output] == ["message", "function_call", "message"]
    assert complete.output_text == "One.Two."


def test_a_call_that_is_cut_short_stays_text_and_its_item_is_incomplete():
    text = (CALL % "Paris")[:-20]
    with client(text, FINISH_REASON_LENGTH) as api:
        choice = api.chat.completions.create(model="m", messages=GREETING, tools=CHAT_TOOLS).choices[0]
        complete = api.responses.create(model="m", input=GREETING, tools=RESPONSE_TOOLS)
        last = list(api.responses.create(model="m", input=GREETING, tools=RESPONSE_TOOLS, stream=True))[-1]
        chunks = list(api.chat.completions.create(model="m", messages=GREETING, tools=CHAT_TOOLS, stream=True))
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "length")
    assert [item.type for item in complete.output] == ["message"]
    assert complete.output_text == last.response.output_text == text
    assert [(item.type, item.status) for item in last.response.output] == [
        ("function_call", "incomplete"),
        ("message", "incomplete"),
    ]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_an_empty_answer_is_an_empty_message():
    with client("") as api:
        complete = api.responses.create(model="m", input=GREETING)
        last = list(api.responses.create(model="m", input=GREETING, stream=True))[-1]
        choice = api.chat.completions.create(model="m", messages=GREETING).choices[0]
    assert complete == last.response
    assert (complete.output_text, choice.message.content, choice.finish_reason) == ("", "", "stop")


def test_a_response_that_fails_midway_has_its_items_so_far():
    with client(error=Unavailable("the worker is gone", reason="NO_WORKER", retry_after=1.0)) as api:
        failed = list(api.responses.create(model="m", input=GREETING, tools=RESPONSE_TOOLS, stream=True))[-1].response
    assert failed.status == "failed"
    assert [item.type for item in failed.output] == ["reasoning", "message", "function_call", "function_call"]


def test_continuous_usage_counts_the_tokens_of_every_part():
    body = {"messages": GREETING, "tools": CHAT_TOOLS, "stream_options": {"continuous_usage_stats": True}}
    answer = chat_serializer(parse_chat(parse_body(json.dumps(body).encode()), "r1"), created=1, output=OUTPUT)
    answer.begin(ACCEPTED)
    assert answer.delta(Delta(text="<thi", token_ids=[1, 2])) == b""
    sent = answer.delta(Delta(text="nk>Hm", token_ids=[3]))
    assert json.loads(sent.removeprefix(b"data: "))["usage"]["completion_tokens"] == 3


def test_plain_output_has_the_serializers_of_plain_text():
    body = parse_body(json.dumps({"messages": GREETING, "input": "hi"}).encode())
    plain = {"created": 1, "output": OutputFormat()}
    assert type(chat_serializer(parse_chat(body, "r1"), **plain)).__name__ == "ChatSerializer"
    assert type(responses_serializer(parse_response(body, "r1"), **plain)).__name__ == "ResponsesSerializer"
