"""Grammars of llguidance for the forms of an output. Edges check them before a request waits; engines enforce them.

Nothing is approximated: a keyword of JSON Schema that the grammar cannot enforce is an error that names it.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from penstock.mesh.forms import Choices, Form, JsonSchema, Lark, Regex, form_problem
from penstock.mesh.schema_patterns import exact_patterns

# Between the tokens of JSON: enough for indented output, and bounded, so that no output is whitespace without an end.
_JSON_OPTIONS: Mapping[str, Any] = MappingProxyType({"whitespace_pattern": r" |\n {0,16}"})
MAX_ERROR_CHARS = 500


class FormUnsupported(ValueError):
    """The form is not valid, has a keyword that cannot be enforced, or is too complex."""

    def __init__(self, found: str) -> None:
        text = " ".join(found.split())[:MAX_ERROR_CHARS]
        super().__init__(f"form cannot be enforced: {text}; correct it, or leave it out")


def limits() -> LLParserLimits:
    """Bounds of the work that a form causes. Compiling takes at most about 0.3 s, and a mask about 1.5 ms."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=15_000,
        step_max_items=15_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,  # errors reach the caller, and would repeat the grammar
    )


def grammar_of(form: Form) -> str:
    """Return llguidance's JSON text of a form. Raises FormUnsupported for some errors; compiling finds the others."""
    if problem := form_problem(form):
        raise FormUnsupported(f"it {problem}")
    match form:
        case JsonSchema(source):
            try:
                return LLMatcher.grammar_from_json_schema(exact_patterns(source), overrides=dict(_JSON_OPTIONS))  # type: ignore[arg-type]
            except ValueError as error:
                raise FormUnsupported(f"the JSON schema is not one: {error}") from error
        case Regex(pattern):
            return LLMatcher.grammar_from_regex(pattern)
        case Lark(grammar):
            return LLMatcher.grammar_from_lark(grammar)
        case Choices(texts):
            return LLMatcher.grammar_from_lark(
                "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
            )


def check_form(form: Form) -> None:
    """Raise FormUnsupported for a form that no engine would accept. Takes up to 0.3 s, without the interpreter lock."""
    is_error, found = LLMatcher.validate_grammar_with_warnings(grammar_of(form), limits=limits())
    if is_error:
        raise FormUnsupported(found[0])
