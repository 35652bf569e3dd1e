"""Conversations and tools of a request, from mappings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from penstock.v1 import inference_pb2 as pb

# A turn: `role` and `content`; `tool_calls` with `id`, `name` and `arguments`, `tool_call_id`, `name`, `reasoning`.
Turn: TypeAlias = Mapping[str, Any]


class ToolOptions(TypedDict, total=False):
    """Options of a conversation. All are optional, and None means absent."""

    tools: Sequence[Mapping[str, Any]]  # each with `name`, and `description`, `parameters` (a JSON schema), `strict`
    tool_choice: str | Mapping[str, str] | None  # auto, none, required, or {"name": ..}
    parallel_tool_calls: bool | None


def chat_of(turns: Sequence[Turn], **options: Any) -> pb.Chat:
    """Build a conversation. Raises ValueError for a choice that does not exist."""
    chat = pb.Chat(
        messages=[_message(turn) for turn in turns],
        tools=[pb.Tool(**_with_json(tool, "parameters")) for tool in options.get("tools") or ()],
        parallel_tool_calls=options.get("parallel_tool_calls"),
    )
    if (choice := options.get("tool_choice")) is not None:
        chat.tool_choice.CopyFrom(_choice(choice))
    return chat


def _message(turn: Turn) -> pb.Message:
    calls = [pb.ToolCall(**_with_json(call, "arguments")) for call in turn.get("tool_calls") or ()]
    return pb.Message(**{**turn, "content": turn.get("content") or "", "tool_calls": calls})


def _choice(choice: str | Mapping[str, str]) -> pb.ToolChoice:
    if not isinstance(choice, str):
        return pb.ToolChoice(mode=pb.TOOL_MODE_NAMED, name=choice["name"])
    return pb.ToolChoice(mode=pb.ToolMode.Value(f"TOOL_MODE_{choice.upper()}"))


def _with_json(members: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return `members` with the object `name` as JSON text, unless it is text already."""
    value = members.get(name)
    return {**members, name: value if isinstance(value, str) else json.dumps(value) if value is not None else ""}
