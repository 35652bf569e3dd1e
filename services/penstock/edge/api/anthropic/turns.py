"""Conversion of the API's messages and system prompt to the turns of a conversation."""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, describe, wrong_type
from penstock.edge.request.spec import Message
from penstock.edge.request.tools import ToolCall

# The kinds of blocks that a message of each role may have. `redacted_thinking` has no text that a model could read.
_ALLOWED: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}


def conversation_turns(fields: Fields) -> tuple[Message, ...]:
    """Return the turns of `system` and `messages`. Raises InvalidArgument with the path of the field.

    Messages of one role that follow each other are one turn. The results of calls are turns of their own.
    """
    messages = fields.get("messages")
    if not messages:
        raise InvalidArgument("messages is missing; give a list with at least one message", field="messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "a list of messages", messages)
    turns = _Turns()
    for index, each in enumerate(messages):
        turns.add_message(each, f"messages[{index}]")
    if messages[-1]["role"] == "assistant":
        path = f"messages[{len(messages) - 1}]"
        raise InvalidArgument(
            f"{path} is of the assistant; this server continues no begun turn, so end with a message of the user",
            field=path,
        )
    system = _text_of(fields.get("system"), "system")
    return (Message("system", system), *turns.messages) if system else turns.messages


class _Turn:
    """A turn that is being made of its parts."""

    __slots__ = ("_calls", "_contents", "_reasoning", "_tool_call_id", "role")

    def __init__(self, role: str, tool_call_id: str = "") -> None:
        self.role = role
        self._tool_call_id = tool_call_id
        self._contents: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    @property
    def message(self) -> Message:
        reasoning = "\n".join(self._reasoning)
        content = "\n".join(self._contents)
        return Message(self.role, content, tuple(self._calls), self._tool_call_id, reasoning=reasoning)

    def add_text(self, text: str) -> None:
        self._contents.append(text)

    def add_block(self, block: Fields) -> None:
        match block.get("type"):
            case "text":
                self._contents.append(block.text("text"))
            case "thinking":
                self._reasoning.append(block.text("thinking"))
            case "tool_use":
                arguments = orjson.dumps(block.object("input").members).decode()
                self._calls.append(ToolCall(_required(block, "id"), _required(block, "name"), arguments))


class _Turns:
    """Turns made of messages and of their blocks."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple([turn.message for turn in self._turns])

    def add_message(self, members: Any, path: str) -> None:
        if not isinstance(members, dict):
            raise wrong_type(path, "an object with role and content", members)
        fields = Fields(members, path)
        role, content = fields.text("role"), members.get("content")
        if role not in _ALLOWED:
            where = fields.path("role")
            raise InvalidArgument(
                f"{where} is {describe(role)}; allowed are user and assistant, beside the field system", field=where
            )
        if isinstance(content, str):
            self._turn(role).add_text(content)
        elif isinstance(content, list) and content:
            for index, block in enumerate(content):
                self._add_block(role, _block(block, f"{path}.content[{index}]", _ALLOWED[role]))
        else:
            raise wrong_type(fields.path("content"), "a string or a list of at least one block", content)

    def _add_block(self, role: str, block: Fields) -> None:
        if block.get("type") == "tool_result":
            result = _Turn("tool", _required(block, "tool_use_id"))
            result.add_text(_text_of(block.get("content"), block.path("content")))
            self._turns.append(result)
        else:
            self._turn(role).add_block(block)

    def _turn(self, role: str) -> _Turn:
        """Return the last turn if it has that role, or else a new one."""
        if not self._turns or self._turns[-1].role != role:
            self._turns.append(_Turn(role))
        return self._turns[-1]


def _text_of(content: Any, path: str) -> str:
    """Return a string, or the text of a list of text blocks, which are joined by newlines. Empty if it is absent."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(path, "a string or a list of text blocks", content)
    blocks = [_block(each, f"{path}[{index}]", ("text",)) for index, each in enumerate(content)]
    return "\n".join([block.text("text") for block in blocks])


def _block(members: Any, path: str, allowed: tuple[str, ...]) -> Fields:
    if not isinstance(members, dict):
        raise wrong_type(path, "a content block", members)
    if (kind := members.get("type")) not in allowed:
        raise InvalidArgument(
            f"{path}.type is {describe(kind)}, which is not supported; allowed here: {', '.join(allowed)}",
            field=f"{path}.type",
        )
    return Fields(members, path)


def _required(fields: Fields, name: str) -> str:
    if not (value := fields.text(name)):
        raise InvalidArgument(f"{fields.path(name)} is missing", field=fields.path(name))
    return value
