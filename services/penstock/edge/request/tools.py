"""Tools of a conversation: functions that the model may call, its calls, and which calls it must make."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import orjson

from penstock.edge.request import limits

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.TOOL_NAME_CHARS}}}")
NAME_RULE = f"1 to {limits.TOOL_NAME_CHARS} letters, digits, _ and -"
Violations = Iterator[tuple[str, str]]  # field of the spec, what is wrong


class ToolMode(Enum):
    """Which calls an answer makes."""

    AUTO = auto()  # the model decides between text and calls
    NONE = auto()  # the tools are not shown to the model
    REQUIRED = auto()  # at least one call of any tool
    NAMED = auto()  # one call of the named tool


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: ToolMode = ToolMode.AUTO
    name: str = ""  # of the tool, if the mode is NAMED


AUTO = ToolChoice()


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call."""

    name: str
    description: str = ""
    parameters: str = ""  # JSON schema of the arguments, an object; empty: no arguments are described
    strict: bool = False  # whether an enforced call must satisfy the whole schema, or as much of it as is supported


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: of an answer, or of an earlier turn."""

    id: str
    name: str
    arguments: str  # JSON


def violations_of_tools(tools: Sequence[Tool], choice: ToolChoice) -> Violations:
    """Yield every limit that the tools of a conversation exceed."""
    if len(tools) > limits.TOOLS:
        yield "tools", f"has {len(tools)} tools; at most {limits.TOOLS} are allowed"
        return
    size = sum(len(each.parameters.encode(errors="surrogatepass")) for each in tools)
    if size > limits.TOOL_SCHEMA_BYTES:
        yield "tools", f"has {size} bytes of schemas; at most {limits.TOOL_SCHEMA_BYTES} are allowed"
        return
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            yield "tools", f"has an invalid name at {index}; a name is {NAME_RULE}"
        elif tool.name in names:
            yield "tools", f"has two tools called {tool.name}"
        elif tool.parameters and not is_json_object(tool.parameters):
            yield "tools", f"has parameters at {index} that are not a JSON schema of an object"
        names.add(tool.name)
    if choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED) and not tools:
        yield "tool_choice", "requires a call, and the request has no tools"
    elif choice.mode is ToolMode.NAMED and choice.name not in names:
        yield "tool_choice", "names a tool that is not among the request's tools"


def violations_of_calls(calls: Sequence[ToolCall], at: int) -> Violations:
    """Yield the first limit that the calls of the message with the index `at` exceed."""
    if len(calls) > limits.TOOL_CALLS:
        yield "input", f"has {len(calls)} tool calls at {at}; at most {limits.TOOL_CALLS} are allowed"
        return
    for call in calls:
        if not _NAME.fullmatch(call.name):
            yield "input", f"has a tool call with an invalid name at {at}; a name is {NAME_RULE}"
            return
        if len(call.id) > limits.TOOL_CALL_ID_CHARS:
            yield "input", f"has a tool call with an id of {len(call.id)} characters at {at}"
            return
        if not is_json_object(call.arguments or "{}"):
            yield "input", f"has a tool call at {at} whose arguments are not a JSON object"
            return


def is_json_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False
