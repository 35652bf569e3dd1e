"""Grammars of answers with tool calls, in the format of the model."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from penstock.edge.output.answer import OutputFormat
from penstock.edge.output.formats import HERMES, LLAMA, ReasoningFormat, ToolFormat
from penstock.edge.request.spec import ChatInput
from penstock.edge.request.tools import Tool, ToolMode
from penstock.mesh.forms import FORM_BYTES, Form, JsonSchema, Lark
from penstock.mesh.schema_patterns import exact_patterns

MAX_ENFORCED_CALLS = 16  # of an answer whose calls are enforced; a loop of calls must end
# Written as models are trained to write JSON; free whitespace would never have to end.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANNOTATIONS = ("description", "title", "default", "examples", "$comment")  # of a schema, without effect on values
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const")
MAX_CACHED_SCHEMA_CHARS = 4_096  # so that 1,024 of them take at most 8 MiB
_COMPOSITIONS = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties", "if", "dependentSchemas")


def enforced_form(
    chat: ChatInput, form: Form | None, output: OutputFormat, marker_ids: Mapping[str, int], *, can_enforce: bool
) -> Form | None:
    """Return the form that the engine enforces on an answer whose request asks for `form`.

    Calls that are required replace it. A JSON schema is an alternative to calls that are not. Without a form, calls
    that are not required obey their schemas if a tool is strict, the engine `can_enforce` it, and the grammar is within
    the limit of a form. `marker_ids`: ids of the markers that are special tokens, and so have no text in a grammar.
    """
    tools, most_calls = chat.shown_tools, MAX_ENFORCED_CALLS if chat.parallel_tool_calls else 1
    grammar = _CallGrammar(output.tool_format, most_calls, marker_ids)
    match chat.tool_choice.mode:
        case ToolMode.REQUIRED:
            rules = grammar.required(output.reasoning if output.begins_in_reasoning else None)
        case ToolMode.NAMED:
            tools = tuple(tool for tool in tools if tool.name == chat.tool_choice.name)
            grammar = _CallGrammar(output.tool_format, 1, marker_ids)
            rules = grammar.required(output.reasoning if output.begins_in_reasoning else None)
        case ToolMode.AUTO if tools and isinstance(form, JsonSchema):
            rules = grammar.alternative_to(form)
        case ToolMode.AUTO if can_enforce and form is None and any(tool.strict for tool in tools):
            if not grammar.can_trigger(output):
                return None
            triggered = _joined(*grammar.triggered(), *grammar.calls(tools))
            return triggered if triggered.size_bytes <= FORM_BYTES else None
        case _:
            return form
    return _joined(*rules, *grammar.calls(tools))


@dataclass(frozen=True, slots=True)
class _CallGrammar:
    """Rules of a grammar in the Lark of llguidance."""

    tool_format: ToolFormat
    max_calls: int
    marker_ids: Mapping[str, int]

    def required(self, reasoning: ReasoningFormat | None) -> list[str]:
        """`reasoning`: its format if the answer begins in it; the calls then follow its end."""
        if reasoning is None:
            return [f"start: {self._sequence()}"]
        if reasoning.end in self.marker_ids:
            return [f'start: TEXT {self._marker(reasoning.end)} "\\n\\n" {self._sequence()}', r"TEXT: /(.|\n)*/"]
        return [
            f'start: reasoning "\\n\\n" {self._sequence()}',
            f"reasoning[suffix={_text(reasoning.end)}]: /(.|\\n)*/",
        ]

    def alternative_to(self, form: JsonSchema) -> list[str]:
        schema: dict[str, Any] = orjson.loads(form.source)
        value = orjson.dumps(schema | {"x-guidance": _LAYOUT}).decode()
        return [f"start: {self._sequence(has_marker=True)} | value", f"value: %json {value}"]

    def can_trigger(self, output: OutputFormat) -> bool:
        """Whether each call has a marker, and all markers of reasoning are text."""
        reasoning = (output.reasoning.begin, output.reasoning.end) if output.reasoning else ()
        return not (self.tool_format.can_begin_bare or any(each in self.marker_ids for each in reasoning))

    def triggered(self) -> list[str]:
        """Free text in which a call follows each marker."""
        begin, most = self.tool_format.begin, 1 if self.tool_format.list_open else self.max_calls
        if begin in self.marker_ids:
            return [f"start: (TEXT {self._marker(begin)} {self._call()}){{0,{most}}} TEXT", r"TEXT: /(.|\n)*/"]
        return [
            f"start: (before {self._call()}){{0,{most}}} TEXT",
            f"before[suffix={_text(begin)}]: /(.|\\n)*/",
            rf"TEXT: /(.|\n)*/ & ~/(.|\n)*{re.escape(begin)}(.|\n)*/",
        ]

    def calls(self, tools: Sequence[Tool]) -> list[str]:
        rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
        for index, tool in enumerate(tools):
            if self.tool_format.arguments_marker:
                call = f"{_text(tool.name)} {self._marker(self.tool_format.arguments_marker)} arguments_{index}"
            else:
                head = f'{{"name": "{tool.name}", "{self.tool_format.arguments_key}": '
                call = f'{_text(head)} arguments_{index} "}}"'
            rules.append(f"call_{index}: {call}")
            rules.append(f"arguments_{index}: %json {_schema_text(tool)}")
        return rules

    def _sequence(self, *, has_marker: bool = False) -> str:
        """Return the expression of at least one call with its marker.

        `has_marker`: the call has a marker even if it needs none, as another JSON object may stand in its place.
        """
        if self.tool_format is LLAMA and not has_marker:
            return "call"
        marked = f"{self._marker(self.tool_format.begin)} {self._call()}"
        # A template of Llama has one call in a turn.
        is_single = self.tool_format is LLAMA or self.tool_format.list_open or self.max_calls == 1
        separator = '"\\n" ' if self.tool_format is HERMES else ""
        return marked if is_single else f"{marked} ({separator}{marked}){{0,{self.max_calls - 1}}}"

    def _call(self) -> str:
        """Return the expression of what follows the marker of a call, or of a list of calls."""
        if self.tool_format is HERMES:
            return f'"\\n" call "\\n" {self._marker(HERMES.end)}'
        if not self.tool_format.list_open:
            return "call"
        more = (
            f" ({_text(self.tool_format.separator + ' ')} call){{0,{self.max_calls - 1}}}" if self.max_calls > 1 else ""
        )
        return f"{_text(self.tool_format.list_open)} call{more} {_text(self.tool_format.end)}"

    def _marker(self, text: str) -> str:
        return f"<[{self.marker_ids[text]}]>" if text in self.marker_ids else _text(text)


def _joined(*rules: str) -> Lark:
    return Lark("\n".join(rules) + "\n")


def _schema_text(tool: Tool) -> str:
    """Return the schema of the arguments as the grammar embeds it. Short ones are cached: agents repeat their tools."""
    make = _cached_schema_text if len(tool.parameters) <= MAX_CACHED_SCHEMA_CHARS else _make_schema_text
    return make(tool.parameters, tool.strict)


def _make_schema_text(parameters: str, is_strict: bool) -> str:
    """Return the schema of an object without members that `parameters` does not name."""
    schema: dict[str, Any] = orjson.loads(exact_patterns(parameters or "{}"))
    _remove_annotations(schema)
    if not any(each in schema for each in _COMPOSITIONS):
        schema = {"additionalProperties": False} | schema | {"type": "object"}
    return orjson.dumps(schema | {"x-guidance": {**_LAYOUT, "lenient": not is_strict}}).decode()


_cached_schema_text = lru_cache(maxsize=1_024)(_make_schema_text)


def _remove_annotations(schema: Any) -> None:
    """Remove what describes a schema to a reader, which is most of many schemas."""
    waiting = [(schema, False)]  # values that are to be visited, and whether the names of their members are free
    while waiting:
        value, is_by_name = waiting.pop()
        if isinstance(value, list):
            waiting += [(each, False) for each in value]
        elif isinstance(value, dict):
            for name in () if is_by_name else _ANNOTATIONS:
                value.pop(name, None)
            waiting += [
                (each, not is_by_name and name in _SCHEMAS_BY_NAME)
                for name, each in value.items()
                if is_by_name or name not in _VALUES
            ]


def _text(text: str) -> str:
    return json.dumps(text)
