"""Grammar of an answer that calls tools, in the format of the model."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from penstock.edge.output.answer import OutputFormat
from penstock.edge.output.formats import HERMES, LLAMA, ToolFormat
from penstock.edge.request.spec import ChatInput
from penstock.edge.request.tools import Tool, ToolMode
from penstock.mesh.forms import Form, JsonSchema, Lark

MAX_REQUIRED_CALLS = 16  # of an answer that must call tools; a loop of calls must end
# Written as models are trained to write JSON; free whitespace would never have to end.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_COMPOSITIONS = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties", "if", "dependentSchemas")


def enforced_form(
    chat: ChatInput, form: Form | None, output: OutputFormat, marker_ids: Mapping[str, int]
) -> Form | None:
    """Return the form that the engine enforces on an answer whose request asks for `form`.

    Calls that are required replace it. A JSON schema is an alternative to calls that are not. `marker_ids`: ids of the
    markers that are special tokens, and so have no text in a grammar.
    """
    tools, most_calls = chat.shown_tools, MAX_REQUIRED_CALLS if chat.parallel_tool_calls else 1
    rules: list[str] = []
    match chat.tool_choice.mode:
        case ToolMode.NAMED:
            tools, most_calls = tuple(tool for tool in tools if tool.name == chat.tool_choice.name), 1
        case ToolMode.AUTO if tools and isinstance(form, JsonSchema):
            calls = _sequence(output.tool_format, most_calls, marker_ids, has_marker=True)
            rules = [f"start: {calls} | value", _value(form)]
        case ToolMode.AUTO | ToolMode.NONE:
            return form
    rules = rules or _start(output, most_calls, marker_ids)
    return Lark("\n".join((*rules, *_calls(tools, output.tool_format, marker_ids))) + "\n")


def _value(form: JsonSchema) -> str:
    schema: dict[str, Any] = orjson.loads(form.source)
    return f"value: %json {orjson.dumps(schema | {'x-guidance': _LAYOUT}).decode()}"


def _start(output: OutputFormat, max_calls: int, marker_ids: Mapping[str, int]) -> list[str]:
    calls = _sequence(output.tool_format, max_calls, marker_ids)
    if not (output.reasoning and output.begins_in_reasoning):
        return [f"start: {calls}"]
    end = output.reasoning.end
    if end in marker_ids:
        return [f'start: REASONING {_marker(end, marker_ids)} "\\n\\n" {calls}', r"REASONING: /(.|\n)*/"]
    return [f'start: reasoning "\\n\\n" {calls}', f"reasoning[suffix={_text(end)}]: /(.|\\n)*/"]


def _sequence(
    tool_format: ToolFormat, max_calls: int, marker_ids: Mapping[str, int], *, has_marker: bool = False
) -> str:
    """Return the expression of 1 to `max_calls` calls with their markers.

    `has_marker`: the first call has a marker even if it needs none, as another JSON object may stand in its place.
    """

    begin = _marker(tool_format.begin, marker_ids)

    def repeated(call: str, separator: str) -> str:
        return f"{call} ({_text(separator)} {call}){{0,{max_calls - 1}}}" if max_calls > 1 else call

    if tool_format is HERMES:
        return repeated(f'{begin} "\\n" call "\\n" {_marker(HERMES.end, marker_ids)}', "\n")
    if tool_format is LLAMA:  # whose template has one call in a turn
        return f"{begin} call" if has_marker else "call"
    if tool_format.arguments_marker:
        return f"({begin} call){{1,{max_calls}}}"
    calls = repeated("call", f"{tool_format.separator} ")
    return f"{begin} {_text(tool_format.list_open)} {calls} {_text(tool_format.end)}"


def _calls(tools: Sequence[Tool], tool_format: ToolFormat, marker_ids: Mapping[str, int]) -> list[str]:
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        if tool_format.arguments_marker:
            call = f"{_text(tool.name)} {_marker(tool_format.arguments_marker, marker_ids)} arguments_{index}"
        else:
            head = f'{{"name": "{tool.name}", "{tool_format.arguments_key}": '
            call = f'{_text(head)} arguments_{index} "}}"'
        rules.append(f"call_{index}: {call}")
        rules.append(f"arguments_{index}: %json {orjson.dumps(_schema_of(tool)).decode()}")
    return rules


def _schema_of(tool: Tool) -> dict[str, Any]:
    """Return the schema of the arguments: an object without members that the schema does not name."""
    schema: dict[str, Any] = orjson.loads(tool.parameters or "{}")
    if not any(each in schema for each in _COMPOSITIONS):
        schema = {"additionalProperties": False} | schema | {"type": "object"}
    return schema | {"x-guidance": {**_LAYOUT, "lenient": not tool.strict}}


def _marker(text: str, marker_ids: Mapping[str, int]) -> str:
    return f"<[{marker_ids[text]}]>" if text in marker_ids else _text(text)


def _text(text: str) -> str:
    return json.dumps(text)
