"""Tools in bodies of chats and responses: their functions, the choice among them, and earlier calls."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, describe, wrong_type
from penstock.edge.api.openai.common import Json
from penstock.edge.request.spec import ChatInput, Message
from penstock.edge.request.tools import AUTO, Tool, ToolCall, ToolChoice, ToolMode

_MODES = {"auto": ToolMode.AUTO, "none": ToolMode.NONE, "required": ToolMode.REQUIRED}
_CHOICES = "auto, none, required, and an object with the type function and a name"
FunctionOf = Callable[[Fields], Fields]  # the object with the members of the function


def chat_input(fields: Fields, messages: tuple[Message, ...]) -> ChatInput:
    """Return the conversation of a chat with its tools, whose functions are objects of their own."""
    return _conversation(fields, messages, lambda holder: holder.object("function"))


def response_input(fields: Fields, messages: tuple[Message, ...]) -> ChatInput:
    """Return the conversation of a response with its tools, which have the members of their functions themselves."""
    return _conversation(fields, messages, lambda holder: holder)


def _conversation(fields: Fields, messages: tuple[Message, ...], function_of: FunctionOf) -> ChatInput:
    if fields.get("tools") is None and fields.get("tool_choice") is None:
        return ChatInput(messages)
    tools = _tools(fields, function_of)
    choice = _choice(fields, function_of)
    parallel = fields.get("parallel_tool_calls")
    return ChatInput(messages, tools, choice, True if parallel is None else fields.flag("parallel_tool_calls"))


def _tools(fields: Fields, function_of: FunctionOf) -> tuple[Tool, ...]:
    tools = fields.get("tools")
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise wrong_type("tools", "a list of tools", tools)
    return tuple([_tool(each, f"tools[{index}]", function_of) for index, each in enumerate(tools)])


def _tool(members: Any, path: str, function_of: FunctionOf) -> Tool:
    if not isinstance(members, dict):
        raise wrong_type(path, "an object with the type function", members)
    fields = Fields(members, path)
    _require_function(fields)
    function = function_of(fields)
    if not function.text("name"):
        raise InvalidArgument(f"{function.path('name')} is missing", field=function.path("name"))
    parameters = function.object("parameters").members
    return Tool(
        name=function.text("name"),
        description=function.text("description"),
        parameters=orjson.dumps(parameters).decode() if parameters else "",
        strict=function.flag("strict"),
    )


def _choice(fields: Fields, function_of: FunctionOf) -> ToolChoice:
    choice = fields.get("tool_choice")
    match choice:
        case None | "auto":
            return AUTO
        case str() if choice in _MODES:
            return ToolChoice(_MODES[choice])
        case dict():
            holder = fields.object("tool_choice")
            _require_function(holder)
            return ToolChoice(ToolMode.NAMED, function_of(holder).text("name"))
        case _:
            raise InvalidArgument(f"tool_choice is {describe(choice)}; allowed are {_CHOICES}", field="tool_choice")


def _require_function(fields: Fields) -> None:
    if fields.get("type") != "function":
        path, kind = fields.path("type"), describe(fields.get("type"))
        raise InvalidArgument(f"{path} is {kind}; this server calls tools of the type function only", field=path)


def calls_in(fields: Fields) -> tuple[ToolCall, ...]:
    """Return the calls of an earlier message of a chat."""
    calls = fields.get("tool_calls")
    if not calls:
        return ()
    path = fields.path("tool_calls")
    if not isinstance(calls, list):
        raise wrong_type(path, "a list of tool calls", calls)
    return tuple([_call(each, f"{path}[{index}]") for index, each in enumerate(calls)])


def _call(members: Any, path: str) -> ToolCall:
    if not isinstance(members, dict):
        raise wrong_type(path, "a tool call", members)
    fields = Fields(members, path)
    if fields.get("type") is not None:
        _require_function(fields)
    function = fields.object("function")
    return ToolCall(fields.text("id"), function.text("name"), function.text("arguments") or "{}")


def response_tools(tools: Sequence[Tool]) -> list[Json]:
    """Return tools as a response repeats them."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description or None,
            "parameters": orjson.loads(tool.parameters) if tool.parameters else None,
            "strict": tool.strict,
        }
        for tool in tools
    ]


def response_choice(choice: ToolChoice) -> str | Json:
    if choice.mode is ToolMode.NAMED:
        return {"type": "function", "name": choice.name}
    return next(name for name, mode in _MODES.items() if mode is choice.mode)
