"""Tools, calls and reasoning in bodies of chats and responses."""

import json

import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.api.openai.chat import parse_chat
from penstock.edge.api.openai.completions import parse_completion
from penstock.edge.api.openai.responses.input_items import input_messages
from penstock.edge.api.openai.responses.response import parse_response
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Message
from penstock.edge.request.tools import AUTO, Tool, ToolCall, ToolChoice, ToolMode

GREETING = [{"role": "user", "content": "hi"}]
HELLO = (Message("user", "hi"),)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "Does it.", "parameters": SCHEMA, "strict": True}
TOOL = Tool("f", "Does it.", json.dumps(SCHEMA, separators=(",", ":")), strict=True)


def chat(**members):
    return parse_chat(parse_body(json.dumps({"messages": GREETING} | members).encode()), "r1").spec.input


def response(**members):
    return parse_response(parse_body(json.dumps({"input": "hi"} | members).encode()), "r1").spec.input


def rejection_of(call, **members):
    with pytest.raises(InvalidArgument) as failure:
        call(**members)
    return failure.value.field_violations[0].field, failure.value.message


def test_the_calls_of_a_turn_are_bounded_while_it_is_made_of_items():
    call = {"type": "function_call", "call_id": "c", "name": "f"}
    (turn,) = response(input=[call] * limits.TOOL_CALLS).messages
    assert len(turn.tool_calls) == limits.TOOL_CALLS
    with pytest.raises(InvalidArgument, match="more than 128 tool calls"):
        input_messages([call] * (limits.TOOL_CALLS + 1))


def test_tools_of_both_endpoints_are_the_same():
    expected = ChatInput(HELLO, (TOOL,))
    assert chat(tools=[{"type": "function", "function": FUNCTION}]) == expected
    assert response(tools=[{"type": "function", **FUNCTION}]) == expected
    assert chat(tools=[{"type": "function", "function": {"name": "f"}}]).tools == (Tool("f"),)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, AUTO),
        ("auto", AUTO),
        ("none", ToolChoice(ToolMode.NONE)),
        ("required", ToolChoice(ToolMode.REQUIRED)),
        ("f", ToolChoice(ToolMode.NAMED, "f")),
    ],
)
def test_the_choice_among_tools_has_four_modes(choice, expected):
    named = choice == "f"
    of_chat = {"type": "function", "function": {"name": "f"}} if named else choice
    of_response = {"type": "function", "name": "f"} if named else choice
    tools = [{"type": "function", "function": FUNCTION}]
    found = chat(tools=tools, tool_choice=of_chat, parallel_tool_calls=False)
    assert (found.tool_choice, found.parallel_tool_calls) == (expected, False)
    assert response(tools=[{"type": "function", **FUNCTION}], tool_choice=of_response).tool_choice == expected


@pytest.mark.parametrize("call", [chat, response])
@pytest.mark.parametrize(
    ("members", "field", "said"),
    [
        ({"tools": {}}, "tools", "must be a list of tools"),
        ({"tools": ["f"]}, "tools[0]", "must be an object with the type function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "calls tools of the type function only"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type", "is the string 'custom'"),
        ({"tool_choice": "any"}, "tool_choice", "allowed are auto, none, required, and an object"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "of the type function only"),
        ({"tool_choice": "required"}, "tool_choice", "requires a call, and the request has no tools"),
    ],
)
def test_tools_that_cannot_be_called_are_named(call, members, field, said):
    found, message = rejection_of(call, **members)
    assert found == field
    assert said in message


def test_a_function_needs_a_name_and_parameters_that_are_an_object():
    assert rejection_of(chat, tools=[{"type": "function"}])[0] == "tools[0].function.name"
    assert rejection_of(response, tools=[{"type": "function"}])[0] == "tools[0].name"
    wrong = {"name": "f", "parameters": [1]}
    assert rejection_of(chat, tools=[{"type": "function", "function": wrong}])[0] == "tools[0].function.parameters"


def test_required_calls_exclude_endless_output():
    tools = [{"type": "function", "function": FUNCTION}]
    assert rejection_of(chat, tools=tools, tool_choice="required", ignore_eos=True)[0] == "ignore_eos"


def test_the_older_functions_are_refused_by_name():
    assert rejection_of(chat, functions=[FUNCTION])[0] == "functions"
    assert rejection_of(chat, function_call={"name": "f"})[0] == "function_call"
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert rejection_of(chat, messages=[old])[0] == "messages[0].function_call"
    body = json.dumps({"prompt": "hi", "tools": [{"type": "function"}]}).encode()
    assert rejection_of(lambda: parse_completion(parse_body(body), "r1"))[0] == "tools"


def test_earlier_turns_of_a_chat_have_calls_results_and_reasoning():
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]
    messages = [
        *GREETING,
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "2"}]},
    ]
    assert chat(messages=messages).messages == (
        *HELLO,
        Message("assistant", "", (ToolCall("call_1", "f", '{"a":1}'),), reasoning="Hm."),
        Message("tool", "2", tool_call_id="call_1"),
    )


def test_items_of_a_response_become_turns_of_a_conversation():
    items = [
        *GREETING,
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "call_2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "2"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "3"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
        {"role": "assistant", "content": "Done."},
        {"type": "function_call", "call_id": "call_3", "name": "f", "arguments": "{}"},
    ]
    both = (ToolCall("call_1", "f", '{"a":1}'), ToolCall("call_2", "f", "{}"))
    assert response(input=items).messages == (
        *HELLO,
        Message("assistant", "", both, reasoning="Hm."),
        Message("tool", "2", tool_call_id="call_1"),
        Message("tool", "3", tool_call_id="call_2"),
        Message("assistant", "Done.", (ToolCall("call_3", "f", "{}"),), reasoning="So."),
    )


@pytest.mark.parametrize(
    ("call", "members", "field"),
    [
        (chat, {"messages": [{"role": "tool", "content": "2"}]}, "messages[0].tool_call_id"),
        (chat, {"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages[0].content"),
        (chat, {"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0].tool_calls[0]"),
        (chat, {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages"),
        (response, {"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        (response, {"input": [{"type": "function_call_output", "output": "2"}]}, "input[0].call_id"),
        (response, {"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        (response, {"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
    ],
)
def test_a_turn_that_cannot_be_read_is_named_by_its_path(call, members, field):
    assert rejection_of(call, **members)[0] == field
