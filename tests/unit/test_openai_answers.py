"""Response serializers, read by the unmodified OpenAI client over a transport in memory."""

import json

import httpx2
import openai
import pytest

from penstock.chassis.errors import Internal, InvalidArgument, QuotaExceeded, Unavailable
from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.api.openai.chat import ChatSerializer, parse_chat
from penstock.edge.api.openai.completions import CompletionSerializer, parse_completion
from penstock.edge.api.openai.models import model_list, model_object
from penstock.edge.api.openai.responses.response import ResponsesSerializer, parse_response
from penstock.v1.inference_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    Accepted,
    Delta,
    Finished,
    Model,
    Stage,
    Timeline,
    Usage,
)

ACCEPTED = Accepted(request_id="r1", model="m", prompt_tokens=3)
DELTAS = [Delta(text="Wa", token_ids=[1]), Delta(text="", token_ids=[2]), Delta(text='ter "\n\0é🙂', token_ids=[3, 4])]
TEXT = "".join(delta.text for delta in DELTAS)
USAGE = Usage(prompt_tokens=3, output_tokens=4, cached_prompt_tokens=2)
STOPPED = Finished(reason=FINISH_REASON_STOP, usage=USAGE)
CUT_SHORT = Finished(reason=FINISH_REASON_LENGTH, usage=USAGE)
WORKER_LOST = Unavailable("the worker is gone; retry", reason="NO_WORKER", retry_after=1.0)

SERIALIZERS = {
    "/v1/chat/completions": (parse_chat, ChatSerializer),
    "/v1/completions": (parse_completion, CompletionSerializer),
    "/v1/responses": (parse_response, ResponsesSerializer),
}
GREETING = [{"role": "user", "content": "hi"}]


PROMPTS = {
    "/v1/chat/completions": {"messages": GREETING},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
}


def strings_in(value):
    """Every string of a JSON value."""
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return [found for each in items for found in strings_in(each)]
    return [value] if isinstance(value, str) else []


def client(finished=STOPPED, error=None):
    """The real client over a transport that serves the output of the pure functions."""

    def served(request):
        parse, new_serializer = SERIALIZERS[request.url.path]
        request = parse(parse_body(request.content), "r1")
        answer = new_serializer(request, created=1_700_000_000)
        if not request.stream:
            return httpx2.Response(200, content=answer.whole(ACCEPTED, TEXT, finished))
        stream = answer.begin(ACCEPTED) + b"".join(answer.delta(delta) for delta in DELTAS)
        stream += answer.finish(finished) if error is None else answer.fail(error)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)

    transport = httpx2.Client(transport=httpx2.MockTransport(served))
    return openai.OpenAI(api_key="k", base_url="http://edge/v1", max_retries=0, http_client=transport)


def test_a_response_stream_has_every_event_in_order_and_numbered():
    with client() as api:
        events = list(api.responses.create(model="m", input="hi", stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    assert "".join(event.delta for event in events[4:6]) == events[6].text == TEXT
    assert {getattr(event, "item_id", "msg_r1") for event in events} == {"msg_r1"}
    assert events[0].response.status == "in_progress"
    completed = events[-1].response
    assert (completed.status, completed.output_text, completed.incomplete_details) == ("completed", TEXT, None)
    assert (completed.usage.input_tokens, completed.usage.output_tokens, completed.usage.total_tokens) == (3, 4, 7)
    assert completed.usage.input_tokens_details.cached_tokens == 2


def test_every_event_of_a_response_is_named_as_it_is_typed():
    request = parse_response(parse_body(b'{"input":"hi"}'), "r1")
    answer = ResponsesSerializer(request, created=1)
    stream = answer.begin(ACCEPTED) + answer.delta(DELTAS[0]) + answer.finish(STOPPED)
    frames = [frame.split(b"\n") for frame in stream.removesuffix(b"\n\n").split(b"\n\n")]
    assert len(frames) == 9
    for name, data in frames:
        assert name.removeprefix(b"event: ").decode() == json.loads(data.removeprefix(b"data: "))["type"]


def test_a_response_cut_by_the_limit_of_the_server_is_complete_for_the_client():
    with client(CUT_SHORT) as api, api.responses.stream(model="m", input="hi") as stream:
        final = stream.get_final_response()
    assert (final.status, final.output_text) == ("completed", TEXT)
    assert final.incomplete_details.reason == "max_output_tokens"
    assert final.output[0].status == "incomplete"


def test_a_response_cut_by_the_caller_s_own_limit_is_incomplete():
    with client(CUT_SHORT) as api:
        streamed = list(api.responses.create(model="m", input="hi", stream=True, max_output_tokens=4))[-1]
        complete = api.responses.create(model="m", input="hi", max_output_tokens=4)
    assert streamed.type == "response.incomplete"
    assert streamed.response == complete
    assert (complete.status, complete.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_whole_response_equals_the_last_event_of_a_streamed_one():
    request = {"model": "m", "input": "hi", "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5}
    with client() as api:
        complete = api.responses.create(**request)
        last = list(api.responses.create(**request, stream=True))[-1]
    assert complete == last.response
    assert (complete.id, complete.model, complete.instructions) == ("resp_r1", "m", "Be brief.")
    assert (complete.metadata, complete.temperature, complete.created_at) == ({"a": "b"}, 0.5, 1_700_000_000)


def test_a_response_that_fails_midway_has_its_text_and_the_reason():
    with client(error=WORKER_LOST) as api:
        events = list(api.responses.create(model="m", input="hi", stream=True))
    assert events[-1].type == "response.failed"
    failed = events[-1].response
    assert (failed.status, failed.output_text) == ("failed", TEXT)
    assert (failed.error.code, failed.error.message) == ("server_error", "the worker is gone; retry")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (QuotaExceeded("q"), "rate_limit_exceeded"),
        (InvalidArgument("i"), "invalid_prompt"),
        (Internal("x"), "server_error"),
    ],
)
def test_a_failed_response_has_one_of_the_api_s_own_codes(error, code):
    answer = ResponsesSerializer(parse_response(parse_body(b'{"input":"hi"}'), "r1"), created=1)
    answer.begin(ACCEPTED)
    failed = json.loads(answer.fail(error).partition(b"data: ")[2])["response"]
    assert (failed["error"]["code"], failed["output"]) == (code, [])


def test_a_chat_stream_starts_with_the_role_and_ends_with_the_reason():
    with client() as api:
        chunks = list(api.chat.completions.create(model="m", messages=GREETING, stream=True))
    assert [chunk.object for chunk in chunks] == ["chat.completion.chunk"] * 4
    assert {(chunk.id, chunk.model, chunk.created, chunk.usage) for chunk in chunks} == {
        ("chatcmpl-r1", "m", 1_700_000_000, None)
    }
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None, None]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]


def test_requested_usage_is_one_more_chunk_without_a_choice():
    with client(CUT_SHORT) as api:
        chunks = list(
            api.chat.completions.create(
                model="m", messages=GREETING, stream=True, stream_options={"include_usage": True}
            )
        )
    assert [len(chunk.choices) for chunk in chunks] == [1, 1, 1, 1, 0]
    assert [chunk.usage is None for chunk in chunks] == [True, True, True, True, False]
    assert chunks[3].choices[0].finish_reason == "length"
    spent = chunks[4].usage
    assert (spent.prompt_tokens, spent.completion_tokens, spent.total_tokens) == (3, 4, 7)
    assert spent.prompt_tokens_details.cached_tokens == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_continuous_usage_counts_the_tokens_so_far_held_ones_included(path):
    parse, new_serializer = SERIALIZERS[path]
    options = {"messages": GREETING, "prompt": "hi", "stream_options": {"continuous_usage_stats": True}}
    answer = new_serializer(parse(parse_body(json.dumps(options).encode()), "r1"), created=1)
    answer.begin(ACCEPTED)
    chunks = [json.loads(sent.removeprefix(b"data: ")) for delta in DELTAS if (sent := answer.delta(delta))]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 4]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_of_chunks_ends_in_done_and_a_failed_one_does_not(path):
    parse, new_serializer = SERIALIZERS[path]
    request = parse(parse_body(json.dumps({"messages": GREETING, "prompt": "hi"}).encode()), "r1")
    good, bad = new_serializer(request, created=1), new_serializer(request, created=1)
    good.begin(ACCEPTED), bad.begin(ACCEPTED)
    assert good.finish(STOPPED).endswith(b"data: [DONE]\n\n")
    assert b"[DONE]" not in bad.fail(WORKER_LOST)


@pytest.mark.parametrize("path", SERIALIZERS)
@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029"])
def test_a_unicode_line_separator_in_the_text_does_not_end_a_line_of_the_stream(path, separator):
    parse, new_serializer = SERIALIZERS[path]
    body = {"model": "m", "stream": True, **PROMPTS[path]}
    answer = new_serializer(parse(parse_body(json.dumps(body).encode()), "r1"), created=1_700_000_000)
    text = f"one{separator}two é"
    delta = Delta(text=text, token_ids=[1])
    stream = (answer.begin(ACCEPTED) + answer.delta(delta) + answer.finish(STOPPED)).decode()
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    assert text in [found for event in events for found in strings_in(json.loads(event))]
    assert stream.splitlines() == stream.split("\n")[:-1]


def test_the_client_raises_when_a_chat_stream_fails_midway():
    got = []
    with client(error=WORKER_LOST) as api, pytest.raises(openai.APIError, match="the worker is gone; retry"):
        chunks = api.chat.completions.create(model="m", messages=GREETING, stream=True)
        got.extend(chunk.choices[0].delta.content for chunk in chunks)
    assert "".join(got) == TEXT


def test_a_whole_chat_completion_has_the_same_text_and_usage_as_its_stream():
    with client() as api:
        complete = api.chat.completions.create(model="m", messages=GREETING)
    assert (complete.id, complete.object, complete.model) == ("chatcmpl-r1", "chat.completion", "m")
    choice = complete.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert (complete.usage.prompt_tokens, complete.usage.completion_tokens, complete.usage.total_tokens) == (3, 4, 7)


def test_a_completion_has_the_same_text_streamed_and_complete():
    with client(CUT_SHORT) as api:
        chunks = list(api.completions.create(model="m", prompt="hi", stream=True))
        complete = api.completions.create(model="m", prompt="hi")
    assert "".join(chunk.choices[0].text for chunk in chunks) == complete.choices[0].text == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "length"]
    assert (complete.id, complete.object, complete.usage.completion_tokens) == ("cmpl-r1", "text_completion", 4)


@pytest.mark.parametrize("path", SERIALIZERS)
def test_the_end_of_an_answer_has_its_timeline_if_there_is_one(path):
    timeline = Timeline(trace_id="t", worker_id="w", attempts=1, stages=[Stage(tier="queue", name="wait")])
    timeline.total.FromMilliseconds(1500)
    timeline.stages[0].length.FromMilliseconds(250)
    finished = Finished(reason=FINISH_REASON_STOP, usage=USAGE, timeline=timeline)
    parse, new_serializer = SERIALIZERS[path]
    body = {"messages": GREETING, "prompt": None, "input": "hi"} if path != "/v1/completions" else {"prompt": "hi"}
    answer = new_serializer(parse(parse_body(json.dumps(body).encode()), "r1"), created=1)
    decoded = json.loads(answer.whole(ACCEPTED, TEXT, finished))["timeline"]
    assert decoded == {
        "total_s": 1.5,
        "stages": [{"tier": "queue", "name": "wait", "start_s": 0.0, "length_s": 0.25}],
        "trace_id": "t",
        "worker_id": "w",
        "attempts": 1,
    }
    answer.begin(ACCEPTED)
    assert answer.finish(finished).count(b'"timeline":') == 1


def test_models_are_listed_and_found_by_name():
    served = [Model(name="a", context_length=8192), Model(name="b/c", context_length=512)]
    listed = json.loads(model_list(served, created=5))
    assert listed["object"] == "list"
    assert [each["id"] for each in listed["data"]] == ["a", "b/c"]
    assert json.loads(model_object(served, "b/c", created=5)) == {
        "id": "b/c",
        "object": "model",
        "created": 5,
        "owned_by": "penstock",
        "max_model_len": 512,
    }
