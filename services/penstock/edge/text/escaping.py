"""Escaping of special tokens in the texts of a conversation and its tools."""

from collections.abc import Callable

import orjson

from penstock.edge.request.spec import Message
from penstock.edge.request.tools import Tool, ToolCall

Escape = Callable[[str], str]


def escaped_turn(message: Message, escape: Escape) -> Message:
    return Message(
        escape(message.role),
        escape(message.content),
        tuple(
            ToolCall(escape(each.id), each.name, _escaped_json(each.arguments, escape)) for each in message.tool_calls
        ),
        escape(message.tool_call_id),
        escape(message.name),
        escape(message.reasoning),
    )


def escaped_tool(tool: Tool, escape: Escape) -> Tool:
    return Tool(tool.name, escape(tool.description), _escaped_json(tool.parameters, escape), tool.strict)


def _escaped_json(source: str, escape: Escape) -> str:
    """Escape the strings of a JSON text, which is written anew first: JSON can spell a special token with escapes."""
    return escape(orjson.dumps(orjson.loads(source)).decode()) if source else ""
