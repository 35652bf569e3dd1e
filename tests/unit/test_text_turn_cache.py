"""The cache of tokenized turns: ids are those of the whole text, whatever is cached, and the cache is bounded."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Reference

from penstock.edge.text import turn_cache
from penstock.edge.text.tokenizer import Tokenizer
from penstock.edge.text.turn_cache import BYTES_PER_CHAR, BYTES_PER_ID, MAX_PIECE_CHARS, PIECE_BYTES, TurnCache
from real_tokenizers import gpt2_json
from tiny_model import tiny_tokenizer

PARTS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "end|>", "user", "\n", " the", "  ", "é", "12", "<s>")
TOKENIZERS = {"gpt2": gpt2_json, "tiny": lambda: tiny_tokenizer(304).to_str()}


@pytest.fixture(scope="module", params=TOKENIZERS, name="pair")
def tokenizer_and_reference(request):
    source = TOKENIZERS[request.param]()
    return Tokenizer(source), Reference.from_str(source)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=10))
def test_a_divided_text_has_the_ids_of_the_whole_text(pair, parts):
    tokenizer, reference = pair
    text = "".join(parts)
    expected = reference.encode(text, add_special_tokens=False).ids
    assert list(tokenizer.encode(text)) == expected
    assert list(tokenizer.encode(text)) == expected  # from the cache


@pytest.mark.parametrize("option", ["lstrip", "normalized", "single_word"])
def test_a_text_is_divided_only_at_tokens_that_are_matched_by_themselves(option):
    plain = tiny_tokenizer(304)
    assert "".join(Tokenizer(plain.to_str())._divided("a<|im_end|>b")) == "a<|im_end|>b"
    assert len(list(Tokenizer(plain.to_str())._divided("a<|im_end|>b"))) == 2
    greedy = tiny_tokenizer(304)
    greedy.add_special_tokens([AddedToken("<greedy>", special=True, **{"normalized": False, option: True})])
    tokenizer = Tokenizer(greedy.to_str())
    assert list(tokenizer._divided("a <|im_end|> <greedy>b")) == ["a <|im_end|> <greedy>b"]


def test_the_cache_keeps_short_pieces_and_evicts_the_oldest():
    cache = TurnCache(max_bytes=3 * (PIECE_BYTES + 2 * BYTES_PER_CHAR + 2 * BYTES_PER_ID))
    for piece in ("aa", "bb", "aa", "cc", "dd"):
        cache.add(piece, array("I", list(piece.encode())))
    assert cache.find("aa") is None
    assert [list(cache.find(piece)) for piece in ("bb", "cc", "dd")] == [[98, 98], [99, 99], [100, 100]]
    cache.add("x" * (MAX_PIECE_CHARS + 1), array("I"))
    cache.add("", array("I"))
    assert len(cache) == 3


def test_a_long_text_is_encoded_in_one_call_and_fills_no_cache():
    tokenizer = Tokenizer(tiny_tokenizer(304).to_str())
    escaped = tokenizer.escape_special_tokens("<|im_end|>" * 8_000)
    ids = tokenizer.encode(escaped)
    assert len(tokenizer._turns) == 0
    one = tokenizer.encode(tokenizer.escape_special_tokens("<|im_end|>" * 2))
    assert list(ids[: len(one) // 2]) == list(one[: len(one) // 2])
    assert not set(ids) & tokenizer.special_ids


def test_a_turn_that_is_sent_again_is_not_tokenized_again(monkeypatch):
    added = []
    monkeypatch.setattr(turn_cache.TurnCache, "add", lambda self, piece, ids: added.append(piece))
    tokenizer = Tokenizer(tiny_tokenizer(304).to_str())
    tokenizer.encode("<|im_start|>a<|im_end|>")
    monkeypatch.undo()
    assert added == ["<|im_start|>a", "<|im_end|>"]
    tokenizer.encode("<|im_start|>a<|im_end|>")
    known = len(tokenizer._turns)
    tokenizer.encode("<|im_start|>a<|im_end|><|im_start|>b")
    assert (known, len(tokenizer._turns)) == (2, 3)
