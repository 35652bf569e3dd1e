"""Conversion of the API's messages to roles and plain text."""

from collections.abc import Mapping
from typing import Any

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, describe, wrong_type
from penstock.edge.api.openai.body.tools import calls_in
from penstock.edge.request.spec import Message

_TEXT_PARTS = ("text", "input_text", "output_text")
_ROLES: Mapping[str, str] = {"developer": "system"}  # the newer name of the role; templates use the older one


def message_from(members: Any, path: str) -> Message:
    """Parse one message. `path`, for example `messages[2]`, names it in errors."""
    if not isinstance(members, dict):
        raise wrong_type(path, "an object with role and content", members)
    fields = Fields(members, path)
    role = fields.text("role")
    if not role:
        raise InvalidArgument(f"{path}.role is missing; give user, assistant or system", field=f"{path}.role")
    role = _ROLES.get(role, role)
    if role != "tool" and len(members) == 2 and "content" in members:  # as most messages are
        return Message(role, content_text(members["content"], f"{path}.content"))
    return _turn_from(fields, role)


def _turn_from(fields: Fields, role: str) -> Message:
    """Parse a message that may have calls, be the result of one, or have a name or reasoning."""
    if fields.get("function_call"):
        path = fields.path("function_call")
        raise InvalidArgument(f"{path} is not supported; send it in tool_calls, which replace it", field=path)
    if role == "tool" and not fields.text("tool_call_id"):
        path = fields.path("tool_call_id")
        raise InvalidArgument(f"{path} is missing; give the id of the call", field=path)
    calls = calls_in(fields)
    content = fields.get("content")
    text = "" if content is None and calls else content_text(content, fields.path("content"))
    return Message(
        role, text, calls, fields.text("tool_call_id"), fields.text("name"), fields.text("reasoning_content")
    )


def content_text(content: Any, path: str) -> str:
    """Return the text of a content: a string, or a list of parts, which are joined by newlines."""
    if content is None:
        raise InvalidArgument(f"{path} is missing; give a string or a list of text parts", field=path)
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join([_part_text(part, f"{path}[{index}]") for index, part in enumerate(content)])
    raise wrong_type(path, "a string or a list of text parts", content)


def _part_text(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise wrong_type(path, "a text part", part)
    fields = Fields(part, path)
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return fields.text("text")
    if kind == "refusal":  # of an earlier answer
        return fields.text("refusal")
    raise InvalidArgument(
        f"{path}.type is {describe(kind)}; this server accepts text only: {', '.join(_TEXT_PARTS)}",
        field=f"{path}.type",
    )
