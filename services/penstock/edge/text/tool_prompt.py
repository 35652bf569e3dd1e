"""Conversations with tools for a chat template: as its variables, or as plain text if it knows no tools."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import orjson

from penstock.edge.request.spec import Message
from penstock.edge.request.tools import Tool, ToolCall

Turn = dict[str, Any]

_NO_PARAMETERS: Turn = {"type": "object", "properties": {}}
# As in the templates of Hermes and Qwen, which teach it to their models.
_INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def tool_variable(tool: Tool) -> Turn:
    """Return a tool in the form that templates of Hugging Face read."""
    parameters = orjson.loads(tool.parameters) if tool.parameters else _NO_PARAMETERS
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def turn_variables(messages: Sequence[Message], *, has_short_ids: bool) -> list[Turn]:
    """Return messages in the form that templates of Hugging Face read. Arguments of calls are objects.

    The result of a call gets the name of its tool, which some templates demand. `has_short_ids`: ids of calls are
    replaced by ones of 9 letters and digits, which templates of Mistral demand.
    """
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_turn_variable(message, names, _short_id if has_short_ids else str) for message in messages]


def _turn_variable(message: Message, names: Mapping[str, str], id_of: Callable[[str], str]) -> Turn:
    turn: Turn = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": id_of(call.id), "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = id_of(message.tool_call_id)
    if name := message.name or names.get(message.tool_call_id):
        turn["name"] = name
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    return turn


def plain_turns(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Turn]:
    """Return a conversation as text only: tools in the system message, calls and results between tags."""
    turns: list[Turn] = []
    for are_results, group in groupby(messages, lambda message: bool(message.tool_call_id)):
        if are_results:
            results = [f"<tool_response>\n{message.content}\n</tool_response>" for message in group]
            turns.append({"role": "user", "content": "\n".join(results)})
        else:
            turns += [_plain_turn(message) for message in group]
    if not tools:
        return turns
    listed = "\n".join(to_json(tool_variable(tool)) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=listed)
    if turns[0]["role"] == "system":
        turns[0]["content"] += f"\n\n{instructions}"
        return turns
    return [{"role": "system", "content": instructions}, *turns]


def _plain_turn(message: Message) -> Turn:
    calls = [_call_text(call) for call in message.tool_calls]
    content = [message.content] if message.content or not calls else []
    return {"role": message.role, "content": "\n".join([*content, *calls])}


def _call_text(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {to_json(_arguments(call))}}}\n</tool_call>'


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON with the spaces that models are trained to write. jinja2's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _arguments(call: ToolCall) -> Any:
    return orjson.loads(call.arguments or "{}")


def _short_id(call_id: str) -> str:
    return hashlib.blake2b(call_id.encode(errors="surrogatepass"), digest_size=5).hexdigest()[:9]
