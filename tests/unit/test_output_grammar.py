"""Grammars of required calls: random walks over the tokens that they allow end in valid calls."""

import json
import random
from dataclasses import replace

import llguidance
import llguidance.numpy
import pytest

from penstock.edge.output.answer import OutputFormat, parse_answer
from penstock.edge.output.formats import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, THINK
from penstock.edge.output.grammar import MAX_ENFORCED_CALLS, enforced_form
from penstock.edge.request.spec import ChatInput, Message
from penstock.edge.request.tools import Tool, ToolChoice, ToolMode
from penstock.mesh.forms import FORM_BYTES, JsonSchema, Lark, Regex
from tiny_model import EOS_ID, tiny_tokenizer

VOCABULARY = 304
WALKS = 125  # of each format: 500 together
FORMATS = pytest.mark.parametrize("tool_format", [HERMES, LLAMA, MISTRAL, MISTRAL_NAMED], ids=lambda each: each.name)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["C", "F", None]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "unit"],
}
TOOLS = (Tool("get_weather", "", json.dumps(SCHEMA)), Tool("stop-all"))
TOKENIZER = tiny_tokenizer(VOCABULARY)
LL_TOKENIZER = llguidance.LLTokenizer(TOKENIZER.to_str(), n_vocab=VOCABULARY, eos_token=EOS_ID)


def output_of(tool_format, **fields):
    return OutputFormat(frozenset(tool.name for tool in TOOLS), tool_format, **fields)


def grammar_of(
    output, mode=ToolMode.REQUIRED, name="", *, tools=TOOLS, parallel=True, marker_ids=(), form=None, can_enforce=True
):
    chat = ChatInput((Message("user", "hi"),), tools, ToolChoice(mode, name), parallel_tool_calls=parallel)
    enforced = enforced_form(chat, form, output, dict(marker_ids), can_enforce=can_enforce)
    return enforced.grammar if isinstance(enforced, Lark) else enforced


def compiled(grammar):
    source = llguidance.LLMatcher.grammar_from_lark(grammar)
    assert llguidance.LLMatcher.validate_grammar(source, LL_TOKENIZER) == ""
    return source


def walk(source, seed):
    """The text of one random walk over the allowed tokens."""
    matcher, rng, ids = llguidance.LLMatcher(LL_TOKENIZER, source), random.Random(seed), []
    mask = llguidance.numpy.allocate_token_bitmask(1, VOCABULARY)
    while not matcher.is_stopped():
        llguidance.numpy.fill_next_token_bitmask(matcher, mask, 0)
        allowed = [each for each in range(VOCABULARY) if mask[0][each // 32] >> (each % 32) & 1]
        ids.append(rng.choice(allowed))
        assert matcher.consume_token(ids[-1])
    assert matcher.is_accepting()
    return TOKENIZER.decode([each for each in ids if each != EOS_ID], skip_special_tokens=False)


def is_valid(call):
    arguments = json.loads(call.arguments)
    if call.name == "stop-all":
        return arguments == {}
    return (
        {"city", "unit"} <= arguments.keys() <= SCHEMA["properties"].keys()
        and len(arguments["city"]) <= 12
        and arguments["unit"] in ("C", "F", None)
        and 1 <= arguments.get("days", 1) <= 14
        and all(isinstance(each, bool) for each in arguments.get("tags", []))
    )


@FORMATS
def test_every_random_walk_over_a_grammar_is_a_list_of_valid_calls(tool_format):
    output = output_of(tool_format)
    source = compiled(grammar_of(output))
    for seed in range(WALKS):
        found = parse_answer(output, walk(source, seed), "a1")
        assert found.text == ""
        assert 1 <= len(found.calls) <= MAX_ENFORCED_CALLS
        assert all(map(is_valid, found.calls))


@FORMATS
@pytest.mark.parametrize(("mode", "name"), [(ToolMode.REQUIRED, ""), (ToolMode.NAMED, "get_weather")])
def test_one_call_is_made_if_it_is_named_or_none_may_be_parallel(tool_format, mode, name):
    output = output_of(tool_format)
    source = compiled(grammar_of(output, mode, name, parallel=False))
    for seed in range(20):
        (call,) = parse_answer(output, walk(source, seed), "a1").calls
        assert call.name == (name or call.name)


def test_an_answer_that_begins_in_reasoning_ends_it_before_its_calls():
    output = output_of(HERMES, reasoning=THINK, begins_in_reasoning=True)
    matcher = llguidance.LLMatcher(LL_TOKENIZER, compiled(grammar_of(output)))
    text = 'Hm, <b>.</think>\n\n<tool_call>\n{"name": "stop-all", "arguments": {}}\n</tool_call>'
    ids = TOKENIZER.encode(text).ids
    assert matcher.try_consume_tokens([*ids, EOS_ID]) == len(ids) + 1


def test_a_marker_that_is_a_special_token_is_that_token():
    output = output_of(MISTRAL)
    source = compiled(grammar_of(output, marker_ids={"[TOOL_CALLS]": 1}))
    matcher = llguidance.LLMatcher(LL_TOKENIZER, source)
    ids = [1, *TOKENIZER.encode('[{"name": "stop-all", "arguments": {}}').ids]
    assert matcher.try_consume_tokens(ids) == len(ids)


@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.NONE])
def test_no_call_is_enforced_unless_one_is_required(mode):
    assert grammar_of(output_of(HERMES), mode) is None
    assert grammar_of(output_of(HERMES), mode, form=Regex("a")) == Regex("a")


def test_tools_are_an_alternative_to_a_json_schema_if_none_is_required():
    schema = JsonSchema(
        '{"type": "object", "properties": {"answer": {"type": "boolean"}}, "required": ["answer"],'
        ' "additionalProperties": false}'
    )
    for tool_format in (HERMES, LLAMA, MISTRAL, MISTRAL_NAMED):
        output = output_of(tool_format)
        source = compiled(grammar_of(output, ToolMode.AUTO, form=schema))
        found = [parse_answer(output, walk(source, seed), "a1") for seed in range(40)]
        values = [json.loads(each.text) for each in found if not each.calls]
        assert 0 < len(values) < 40
        assert all(isinstance(value["answer"], bool) for value in values)
        assert all(is_valid(call) for each in found for call in each.calls)
    assert grammar_of(output_of(HERMES), ToolMode.NONE, form=schema) is schema


def test_an_unsupported_keyword_is_ignored_unless_the_tool_is_strict():
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "object", "propertyNames": {"pattern": "x"}}}})
    lenient = grammar_of(output_of(HERMES), tools=(Tool("f", "", schema),))
    strict = grammar_of(output_of(HERMES), tools=(Tool("f", "", schema, strict=True),))
    check = llguidance.LLMatcher.validate_grammar
    assert check(llguidance.LLMatcher.grammar_from_lark(lenient), LL_TOKENIZER) == ""
    assert "propertyNames" in check(llguidance.LLMatcher.grammar_from_lark(strict), LL_TOKENIZER)


STRICT = (replace(TOOLS[0], strict=True), TOOLS[1])
VALID = {
    "hermes": '<tool_call>\n{"name": "stop-all", "arguments": {}}\n</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "stop-all", "arguments": {}}, {"name": "stop-all", "arguments": {}}]',
    "mistral-named": "[TOOL_CALLS]stop-all[ARGS]{}",
}


def taken(source, text):
    """The part of a text that a grammar allows, and whether the text may end there."""
    matcher, ids = llguidance.LLMatcher(LL_TOKENIZER, source), TOKENIZER.encode(text).ids
    count = matcher.try_consume_tokens(ids)
    return TOKENIZER.decode(ids[:count]), matcher.is_accepting()


@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL, MISTRAL_NAMED], ids=lambda each: each.name)
def test_a_strict_tool_is_enforced_behind_its_marker_wherever_the_model_calls_it(tool_format):
    source = compiled(grammar_of(output_of(tool_format), ToolMode.AUTO, tools=STRICT))
    valid, begin = VALID[tool_format.name], tool_format.begin
    for text in ("", "Hi <b> [1] {", f"Hi.\n{valid}", f"{valid}\nDone.", begin[:-1]):
        assert taken(source, text) == (text, True)
    invalid = f'Hi {valid[: valid.index("stop-all")]}x"'
    allowed, can_end = taken(source, invalid)
    assert allowed == f"Hi {valid[: valid.index('stop-all')]}"
    assert not can_end


def test_one_call_is_allowed_behind_a_marker_if_none_may_be_parallel():
    source = compiled(grammar_of(output_of(HERMES), ToolMode.AUTO, tools=STRICT, parallel=False))
    second = "\n<tool_call"
    assert taken(source, VALID["hermes"] + second + ">") == (VALID["hermes"] + second, True)


def test_a_marker_that_is_a_special_token_begins_a_strict_call():
    source = compiled(grammar_of(output_of(MISTRAL), ToolMode.AUTO, tools=STRICT, marker_ids={"[TOOL_CALLS]": 1}))
    matcher = llguidance.LLMatcher(LL_TOKENIZER, source)
    ids = [*TOKENIZER.encode("Hi").ids, 1, *TOKENIZER.encode('[{"name": "stop-all", "arguments": {}}]').ids]
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


def test_strict_tools_are_not_enforced_where_a_call_or_reasoning_cannot_be_told_from_text():
    assert grammar_of(output_of(LLAMA), ToolMode.AUTO, tools=STRICT) is None
    output = output_of(HERMES, reasoning=THINK)
    assert grammar_of(output, ToolMode.AUTO, tools=STRICT, marker_ids={"</think>": 1}) is None
    assert grammar_of(output, ToolMode.AUTO, tools=STRICT) is not None
    assert grammar_of(output, ToolMode.AUTO, tools=STRICT, can_enforce=False) is None
    assert grammar_of(output, ToolMode.REQUIRED, tools=STRICT, can_enforce=False) is not None


def test_annotations_of_a_schema_are_left_out_and_properties_of_their_names_are_not():
    schema = {
        "description": "long",
        "properties": {"description": {"title": "long", "enum": [{"title": "x"}]}, "title": {"type": "boolean"}},
        "required": ["description", "title"],
        "$defs": {"default": {"examples": ["long"], "type": "string"}},
    }
    tools = (Tool("f", "", json.dumps(schema)),)
    output = OutputFormat(frozenset({"f"}))
    grammar = grammar_of(output, ToolMode.NAMED, "f", tools=tools)
    assert "long" not in grammar
    (call,) = parse_answer(output, walk(compiled(grammar), 1), "a1").calls
    arguments = json.loads(call.arguments)
    assert arguments["description"] == {"title": "x"}
    assert isinstance(arguments["title"], bool)


def test_strict_tools_with_schemas_beyond_the_limit_of_a_form_are_enforced_only_if_required():
    schema = json.dumps({"type": "object", "properties": {f"p{index}": {"type": "null"} for index in range(4_000)}})
    tools = (Tool("f", "", schema, strict=True),)
    assert grammar_of(output_of(HERMES), ToolMode.AUTO, tools=tools) is None
    assert len(grammar_of(output_of(HERMES), ToolMode.REQUIRED, tools=tools)) > FORM_BYTES
