"""Patterns of schemas: what the grammar admits matches the pattern."""

import json
import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from penstock.mesh.form_grammar import grammar_of, limits
from penstock.mesh.forms import JsonSchema
from penstock.mesh.schema_patterns import exact_pattern, exact_patterns
from tiny_model import EOS_ID, tiny_tokenizer

VOCAB = 304
TOKENIZER = LLTokenizer(tiny_tokenizer(VOCAB).to_str(), n_vocab=VOCAB, eos_token=[EOS_ID])
PATTERNS = (
    *('^[^"\\\\]{1,6}$', '^[^"]{1,6}$', "^[^\\\\]+$", "^[^x]+$"),
    *('^[a-z"]+$', "^\\S+$", '^[^]"]+$', '^\\[[^"]\\]$'),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_grammar_admits_no_text_that_its_pattern_excludes(pattern):
    grammar = grammar_of(JsonSchema(json.dumps({"type": "string", "pattern": pattern})))
    admitted = []
    for text in ('a"b', "a\\b", "axb", "ab", '"', "é", "[a]", '["]', "a]b"):
        matcher = LLMatcher(TOKENIZER, grammar, limits=limits(), log_level=0)
        ids = TOKENIZER.tokenize_str(json.dumps(text, ensure_ascii=False))
        if matcher.consume_tokens(ids) and matcher.is_accepting():
            admitted.append(text)
        assert (text in admitted) == bool(re.search(pattern, text))
    assert admitted


@pytest.mark.parametrize(
    ("pattern", "exact"),
    [
        ("[^a]", r"[^\x00-\x1fa]"),
        (r"\[^a", r"\[^a"),
        ("[^]a]", r"[^\x00-\x1f\]a]"),
        ("[a[^]", "[a[^]"),
        ("[a-z]", "[a-z]"),
        (r"[\]^]x[^b]", r"[\]^]x[^\x00-\x1fb]"),
    ],
)
def test_negated_classes_exclude_control_characters(pattern, exact):
    assert exact_pattern(pattern) == exact


def test_only_patterns_are_changed():
    schema = {
        "properties": {"pattern": {"const": {"pattern": "[^a]"}}, "a": {"pattern": "[^a]"}},
        "patternProperties": {"[^b]": {}},
        "enum": [{"pattern": "[^a]"}],
    }
    changed = json.loads(exact_patterns(json.dumps(schema)))
    assert changed == {
        "properties": {"pattern": {"const": {"pattern": "[^a]"}}, "a": {"pattern": r"[^\x00-\x1fa]"}},
        "patternProperties": {r"[^\x00-\x1fb]": {}},
        "enum": [{"pattern": "[^a]"}],
    }
    assert exact_patterns("{[^") == "{[^"
    assert exact_patterns('{"a": 1e400}') == '{"a": 1e400}'
