"""Grammars of required calls: random walks over the tokens that they allow end in valid calls."""

import json
import random

import llguidance
import llguidance.numpy
import pytest

from penstock.edge.output.answer import OutputFormat, parse_answer
from penstock.edge.output.formats import HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, THINK
from penstock.edge.output.grammar import MAX_REQUIRED_CALLS, enforced_form
from penstock.edge.request.spec import ChatInput, Message
from penstock.edge.request.tools import Tool, ToolChoice, ToolMode
from penstock.mesh.forms import JsonSchema, Lark, Regex
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


def grammar_of(output, mode=ToolMode.REQUIRED, name="", *, tools=TOOLS, parallel=True, marker_ids=(), form=None):
    chat = ChatInput((Message("user", "hi"),), tools, ToolChoice(mode, name), parallel_tool_calls=parallel)
    enforced = enforced_form(chat, form, output, dict(marker_ids))
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
        assert 1 <= len(found.calls) <= MAX_REQUIRED_CALLS
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
