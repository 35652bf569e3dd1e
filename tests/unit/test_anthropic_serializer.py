"""Responses of the Messages API: blocks, events in order, usage and errors."""

import json

import pytest

from penstock.chassis.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
)
from penstock.edge.api.anthropic.errors import error_body
from penstock.edge.api.anthropic.requests import parse_message
from penstock.edge.api.anthropic.serializer import message_serializer
from penstock.edge.api.openai.body.fields import BodyTooLarge, parse_body
from penstock.edge.api.openai.errors import http_error
from penstock.edge.output.answer import PLAIN, OutputFormat, call_id
from penstock.edge.output.formats import THINK
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Accepted, Delta, Finished, Usage

REQUEST = parse_message(
    parse_body(json.dumps({"max_tokens": 9, "messages": [{"role": "user", "content": "?"}]}).encode()), "r1"
)
ACCEPTED = Accepted(request_id="r1", model="m", prompt_tokens=10, answer_id="a1")
TOOLS = OutputFormat(frozenset({"f"}), reasoning=THINK)
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "%s"}}\n</tool_call>'
ANSWER = f"<think>\nHm.\n</think>\n\nI look.{CALL % 'Paris'}{CALL % 'Rome'}"
USAGE = {"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 3}


def finished(reason=FINISH_REASON_STOP, stop_string=""):
    usage = Usage(prompt_tokens=10, output_tokens=3, cached_prompt_tokens=4)
    return Finished(reason=reason, usage=usage, stop_string=stop_string)


def whole(text, output=PLAIN, end=None):
    return json.loads(message_serializer(REQUEST, output=output).whole(ACCEPTED, text, end or finished()))


def events_in(sent):
    """The name and the payload of each event."""
    events = []
    for frame in sent.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        events.append(payload)
    return events


def streamed(text, output=PLAIN, end=None, size=4):
    serializer = message_serializer(REQUEST, output=output)
    frames = [serializer.begin(ACCEPTED)]
    frames += [serializer.delta(Delta(text=text[at : at + size])) for at in range(0, len(text), size)]
    return events_in(b"".join([*frames, serializer.finish(end or finished())]))


def message_of(events):
    """The message that a client makes of a stream."""
    message, open_index, arguments = None, None, ""
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert (open_index, event["index"]) == (None, len(message["content"]))
                open_index = event["index"]
                message["content"].append(event["content_block"])
                arguments = ""
            case "content_block_delta":
                assert event["index"] == open_index
                delta, block = event["delta"], message["content"][-1]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    block[block["type"]] += delta[block["type"]]
            case "content_block_stop":
                assert event["index"] == open_index
                open_index = None
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = json.loads(arguments)
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    assert (open_index, events[-1]["type"]) == (None, "message_stop")
    return message


def test_a_whole_answer_is_a_message():
    assert whole("Hi.") == {
        "id": "msg_r1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }


def test_the_events_of_a_plain_stream_in_order():
    start, *events = streamed("Hi\u2028 there", size=2)
    assert start["message"]["usage"]["input_tokens"] == 10  # what a cache had is not known yet
    assert (start["message"]["content"], start["message"]["stop_reason"]) == ([], None)
    assert events == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": part}}
            for part in ("Hi", "\u2028 ", "th", "er", "e")
        ],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("Hi.", PLAIN),
        ("", PLAIN),
        ("", TOOLS),
        ("Hi.", TOOLS),
        (ANSWER, TOOLS),
        (f"One.{CALL % 'Paris'}Two.", TOOLS),
        (ANSWER[:-20], TOOLS),
    ],
)
def test_a_stream_has_the_same_message_as_a_whole_answer(text, output, size):
    assert message_of(streamed(text, output, size=size)) == whole(text, output)


def test_reasoning_text_and_calls_are_blocks():
    message = whole(ANSWER, TOOLS)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": call_id("a1", 0), "name": "f", "input": {"city": "Paris"}},
        {"type": "tool_use", "id": call_id("a1", 1), "name": "f", "input": {"city": "Rome"}},
    ]
    assert message["stop_reason"] == "tool_use"


def test_the_content_of_a_message_can_be_sent_back():
    body = {
        "max_tokens": 9,
        "messages": [
            {"role": "assistant", "content": whole(ANSWER, TOOLS)["content"]},
            {"role": "user", "content": "?"},
        ],
    }
    turn = parse_message(parse_body(json.dumps(body).encode()), "r1").spec.input.messages[0]
    assert (turn.reasoning, turn.content, len(turn.tool_calls)) == ("Hm.", "I look.", 2)


@pytest.mark.parametrize("size", [1, 1000])
def test_a_call_that_is_cut_short_is_text_and_never_a_block_of_its_own(size):
    end = finished(FINISH_REASON_LENGTH)
    cut = (CALL % "Paris")[:-20]
    events = streamed(cut, TOOLS, end, size=size)
    assert {event["content_block"]["type"] for event in events if event["type"] == "content_block_start"} == {"text"}
    message = message_of(events)
    assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": cut}], "max_tokens")


@pytest.mark.parametrize(
    ("end", "output", "expected"),
    [
        (finished(), PLAIN, ("end_turn", None)),
        (finished(FINISH_REASON_LENGTH), PLAIN, ("max_tokens", None)),
        (finished(stop_string="END"), PLAIN, ("stop_sequence", "END")),
        (finished(), TOOLS, ("tool_use", None)),
        (finished(FINISH_REASON_LENGTH), TOOLS, ("max_tokens", None)),
        (finished(stop_string="END"), TOOLS, ("stop_sequence", "END")),
    ],
)
def test_the_reason_of_the_end(end, output, expected):
    message = whole(CALL % "Paris", output, end)
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_the_format_of_a_model_that_replaced_the_first_divides_the_rest():
    serializer = message_serializer(REQUEST, output=PLAIN)
    serializer.begin(ACCEPTED)
    serializer.on_model_changed(TOOLS)
    sent = serializer.delta(Delta(text=CALL % "Paris")) + serializer.finish(finished())
    assert [event["type"] for event in events_in(sent)] == [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidArgument("x"), 400, "invalid_request_error"),
        (Unauthenticated("x"), 401, "authentication_error"),
        (PermissionDenied("x"), 403, "permission_error"),
        (NotFound("x"), 404, "not_found_error"),
        (BodyTooLarge("x"), 413, "request_too_large"),
        (QuotaExceeded("x"), 429, "rate_limit_error"),
        (Internal("x"), 500, "api_error"),
        (Overloaded("x"), 503, "overloaded_error"),
        (DeadlineExceeded("x"), 504, "timeout_error"),
    ],
)
def test_errors_have_the_types_of_the_api(error, status, kind):
    response = http_error(error, error_body)
    assert response.status == status
    assert json.loads(response.body) == {"type": "error", "error": {"type": kind, "message": "x"}}
    (event,) = events_in(message_serializer(REQUEST, output=PLAIN).fail(error))
    assert event["error"]["type"] == kind
