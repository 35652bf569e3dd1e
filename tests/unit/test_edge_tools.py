import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Message, RequestSpec
from penstock.edge.request.tools import Tool, ToolCall, ToolChoice, ToolMode
from penstock.edge.request.validation import validate

HELLO = (Message("user", "hi"),)


def violation_of(messages=HELLO, tools=(), **fields):
    spec = RequestSpec(request_id="r1", model="m", input=ChatInput(messages, tools, **fields))
    try:
        validate(spec)
    except InvalidArgument as error:
        return error.field_violations[0].field, error.message
    return None


def test_tools_within_the_limits_are_accepted():
    tools = tuple(Tool(f"tool_{index}-A", "Does it.", '{"type": "object"}') for index in range(limits.TOOLS))
    assert violation_of(tools=tools, tool_choice=ToolChoice(ToolMode.NAMED, "tool_5-A")) is None
    assert violation_of(tools=(Tool("f"),), tool_choice=ToolChoice(ToolMode.REQUIRED)) is None


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (tuple(Tool(f"f{index}") for index in range(limits.TOOLS + 1)), "has 129 tools; at most 128 are allowed"),
        ((Tool("a b"),), "has an invalid name at 0; a name is 1 to 64 letters, digits, _ and -"),
        ((Tool(""),), "has an invalid name at 0"),
        ((Tool("f" * 65),), "has an invalid name at 0"),
        ((Tool("f"), Tool("f")), "has two tools called f"),
        ((Tool("f", "", "[]"),), "has parameters at 0 that are not a JSON schema of an object"),
        ((Tool("f", "", "{"),), "has parameters at 0 that are not a JSON schema of an object"),
        ((Tool("f", "", "{}" + " " * limits.TOOL_SCHEMA_BYTES),), "bytes of schemas; at most 262144 are allowed"),
    ],
)
def test_tools_beyond_the_limits_are_rejected(tools, said):
    field, message = violation_of(tools=tools)
    assert field == "tools"
    assert said in message


@pytest.mark.parametrize(
    ("tools", "choice", "said"),
    [
        ((), ToolChoice(ToolMode.REQUIRED), "requires a call, and the request has no tools"),
        ((Tool("f"),), ToolChoice(ToolMode.NAMED, "g"), "names a tool that is not among the request's tools"),
    ],
)
def test_a_choice_of_tools_that_are_not_there_is_rejected(tools, choice, said):
    assert violation_of(tools=tools, tool_choice=choice) == ("tool_choice", f"tool_choice {said}")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall("c1", "a b", "{}"), "has a tool call with an invalid name at 1"),
        (ToolCall("c" * 129, "f", "{}"), "has a tool call with an id of 129 characters at 1"),
        (ToolCall("c1", "f", "[]"), "has a tool call at 1 whose arguments are not a JSON object"),
        (ToolCall("c1", "f", "{"), "has a tool call at 1 whose arguments are not a JSON object"),
    ],
)
def test_earlier_calls_must_be_calls(call, said):
    field, message = violation_of((*HELLO, Message("assistant", "", (call,))))
    assert field == "input"
    assert said in message


def test_texts_of_calls_count_as_text():
    call = ToolCall("c1", "f", '{"a": "%s"}' % ("x" * limits.TEXT_BYTES))
    assert "bytes" in violation_of((Message("assistant", "", (call,)),))[1]


def test_a_choice_of_no_tool_hides_the_tools():
    assert ChatInput(HELLO, (Tool("f"),)).shown_tools == (Tool("f"),)
    assert ChatInput(HELLO, (Tool("f"),), ToolChoice(ToolMode.NONE)).shown_tools == ()
