"""Tools in bodies of messages, and the choice among them."""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, describe, wrong_type
from penstock.edge.request.spec import ChatInput, Message
from penstock.edge.request.tools import AUTO, Tool, ToolChoice, ToolMode

_MODES: Mapping[str, ToolMode] = {
    "auto": ToolMode.AUTO,
    "any": ToolMode.REQUIRED,
    "tool": ToolMode.NAMED,
    "none": ToolMode.NONE,
}


def conversation_with_tools(fields: Fields, messages: tuple[Message, ...]) -> ChatInput:
    """Return the conversation of a body. Raises InvalidArgument with the path of the field."""
    tools, choice = fields.get("tools"), fields.object("tool_choice")
    if tools is None and not choice.members:
        return ChatInput(messages)
    is_parallel = not choice.flag("disable_parallel_tool_use")
    return ChatInput(messages, _tools([] if tools is None else tools), _choice(choice), is_parallel)


def _tools(given: Any) -> tuple[Tool, ...]:
    if not isinstance(given, list):
        raise wrong_type("tools", "a list of tools", given)
    return tuple([_tool(each, f"tools[{index}]") for index, each in enumerate(given)])


def _tool(members: Any, path: str) -> Tool:
    if not isinstance(members, dict):
        raise wrong_type(path, "an object with name and input_schema", members)
    fields = Fields(members, path)
    if fields.get("type") not in (None, "custom"):
        where, kind = fields.path("type"), describe(fields.get("type"))
        raise InvalidArgument(
            f"{where} is {kind}; this server has no tools of its own, describe it by name and input_schema", field=where
        )
    if not fields.text("name"):
        raise InvalidArgument(f"{fields.path('name')} is missing", field=fields.path("name"))
    schema = fields.object("input_schema").members
    return Tool(
        name=fields.text("name"),
        description=fields.text("description"),
        parameters=orjson.dumps(schema).decode() if schema else "",
        strict=fields.flag("strict"),
    )


def _choice(choice: Fields) -> ToolChoice:
    kind = choice.get("type")
    if not choice.members:
        return AUTO
    if not isinstance(kind, str) or kind not in _MODES:
        where = choice.path("type")
        raise InvalidArgument(f"{where} is {describe(kind)}; allowed are {', '.join(_MODES)}", field=where)
    mode = _MODES[kind]
    return ToolChoice(mode, choice.text("name") if mode is ToolMode.NAMED else "")
