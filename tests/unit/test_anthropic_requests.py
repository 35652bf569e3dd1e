"""Bodies of the Messages API: the conversation, options and errors."""

import json

import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.anthropic.requests import parse_count, parse_message
from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.request.session_names import session_of
from penstock.edge.request.spec import Message
from penstock.edge.request.tools import Tool, ToolCall, ToolChoice, ToolMode
from penstock.mesh.forms import JsonSchema
from penstock.v1.inference_pb2 import Priority

QUESTION = [{"role": "user", "content": "?"}]
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}


def request_of(**body):
    given = {"model": "m", "max_tokens": 9, "messages": QUESTION, **body}
    return parse_message(parse_body(json.dumps(given).encode()), "r1")


def turns(*messages, **body):
    return request_of(messages=list(messages), **body).spec.input.messages


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def text(value):
    return {"type": "text", "text": value}


def test_options_become_those_of_the_spec():
    request = request_of(
        temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["a", "b"], stream=True, service_tier="standard_only"
    )
    spec = request.spec
    assert (spec.request_id, spec.model, spec.max_output_tokens) == ("r1", "m", 9)
    assert (spec.temperature, spec.top_p, spec.top_k, spec.stop) == (0.5, 0.9, 7, ("a", "b"))
    assert (spec.priority, request.stream) == (Priority.PRIORITY_STANDARD, True)
    assert request_of(service_tier="auto").spec.priority == Priority.PRIORITY_UNSPECIFIED


def test_thinking_metadata_and_cache_marks_are_accepted():
    marked = [{"role": "user", "content": [text("?") | {"cache_control": {"type": "ephemeral"}}]}]
    plain = request_of()
    assert request_of(messages=marked, thinking={"type": "enabled", "budget_tokens": 1_024}, metadata={}) == plain


def test_a_system_prompt_is_the_first_turn():
    assert turns(user("?"), system="Be brief.") == (Message("system", "Be brief."), Message("user", "?"))
    assert turns(user("?"), system=[text("a"), text("b")])[0] == Message("system", "a\nb")
    assert turns(user("?"), system="") == (Message("user", "?"),)


def test_blocks_become_calls_results_and_reasoning():
    found = turns(
        user([text("a"), text("b")]),
        assistant(
            [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                text("I look."),
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"city": "Paris"}},
                {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
            ]
        ),
        user(
            [
                {"type": "tool_result", "tool_use_id": "t1", "content": "Rain."},
                {"type": "tool_result", "tool_use_id": "t2", "content": [text("x"), text("y")], "is_error": True},
                text("And?"),
            ]
        ),
    )
    calls = (ToolCall("t1", "f", '{"city":"Paris"}'), ToolCall("t2", "g", "{}"))
    assert found == (
        Message("user", "a\nb"),
        Message("assistant", "I look.", calls, reasoning="hm"),
        Message("tool", "Rain.", tool_call_id="t1"),
        Message("tool", "x\ny", tool_call_id="t2"),
        Message("user", "And?"),
    )


def test_messages_of_one_role_that_follow_each_other_are_one_turn():
    found = turns(user("a"), user([text("b")]), assistant("c"), assistant("d"), user("e"))
    assert found == (Message("user", "a\nb"), Message("assistant", "c\nd"), Message("user", "e"))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice(ToolMode.REQUIRED)),
        ({"type": "none"}, ToolChoice(ToolMode.NONE)),
        ({"type": "tool", "name": "f"}, ToolChoice(ToolMode.NAMED, "f")),
    ],
)
def test_tools_and_the_choice_among_them(choice, expected):
    found = request_of(tools=[TOOL, {"type": "custom", "name": "g", "strict": True}], tool_choice=choice).spec.input
    assert found.tools == (Tool("f", "d", '{"type":"object"}'), Tool("g", strict=True))
    assert (found.tool_choice, found.parallel_tool_calls) == (expected, True)


def test_parallel_calls_can_be_disabled():
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert not request_of(tools=[TOOL], tool_choice=choice).spec.input.parallel_tool_calls


def test_a_schema_of_the_output_is_its_form():
    form = request_of(output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}}).spec.form
    assert form == JsonSchema('{"type":"object"}')


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "?"}, "messages"),
        ({"messages": ["?"]}, "messages[0]"),
        ({"messages": [{"role": "system", "content": "?"}]}, "messages[0].role"),
        ({"messages": [user(None)]}, "messages[0].content"),
        ({"messages": [user([])]}, "messages[0].content"),
        ({"messages": [user(["?"])]}, "messages[0].content[0]"),
        ({"messages": [user([text("?"), IMAGE])]}, "messages[0].content[1].type"),
        ({"messages": [user([{"type": "tool_use"}])]}, "messages[0].content[0].type"),
        ({"messages": [user([{"type": "tool_result"}])]}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}])]},
            "messages[0].content[0].content[0].type",
        ),
        ({"messages": [*QUESTION, assistant([{"type": "tool_use", "id": "t"}])]}, "messages[1].content[0].name"),
        ({"messages": [*QUESTION, assistant("It")]}, "messages[1]"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"system": 1}, "system"),
        ({"stop_sequences": [1]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 100}, "stop_sequences"),
        ({"service_tier": "fast"}, "service_tier"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"name": ""}]}, "tools[0].name"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ],
)
def test_a_wrong_field_is_named(body, named):
    with pytest.raises(InvalidArgument) as refused:
        request_of(**body)
    assert refused.value.field_violations[0].field == named


def test_a_count_needs_no_limit_of_tokens():
    body = {"model": "m", "system": "s", "messages": QUESTION, "tools": [TOOL]}
    counted = parse_count(parse_body(json.dumps(body).encode()))
    assert counted.input == request_of(**body).spec.input


def test_the_user_of_the_metadata_names_the_conversation_after_all_other_fields():
    assert session_of((), {"metadata": {"user_id": "u"}}) == "u"
    assert session_of((), {"metadata": {"user_id": "u"}, "user": "v"}) == "v"
    assert session_of((), {"metadata": {"id": "u"}}) == session_of((), {"metadata": {"user_id": 1}}) == ""
