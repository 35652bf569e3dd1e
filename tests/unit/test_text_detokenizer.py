import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models

from paths import STORIES
from penstock.edge.text.detokenizer import Detokenizer, decode
from penstock.edge.text.errors import ModelTextUnusable
from penstock.edge.text.tokenizer import Tokenizer
from real_tokenizers import gpt2_json, smollm2_json, stories_json

BYTE_LEVEL = [gpt2_json, smollm2_json]
ALL = [*BYTE_LEVEL, stories_json]
POEM = "Ode 🙂🙂🏽‍🚀: 水は流れる, naïve œuvre — 1234\n\n\tΩ≈ç√ <|im_start|>"


def cut(ids, cuts):
    """Feed `ids` in several parts, split at `cuts`."""
    borders = sorted({each % (len(ids) + 1) for each in cuts} | {0, len(ids)})
    return [ids[start:end] for start, end in pairwise(borders)]


def loaded(source):
    """Return Penstock's and the library's tokenizer of one tokenizer.json."""
    return Tokenizer(source()), Reference.from_str(source())


@pytest.mark.parametrize("source", BYTE_LEVEL)
def test_deltas_of_any_ids_cut_anywhere_join_to_the_library_s_full_decode(source):
    ours, reference = loaded(source)

    @given(st.lists(st.integers(0, reference.get_vocab_size() - 1)), st.lists(st.integers(0, 1000)))
    def holds(ids, cuts):
        detokenizer = Detokenizer(ours.vocabulary)
        deltas = [detokenizer.feed(part) for part in cut(ids, cuts)] + [detokenizer.flush()]
        assert "".join(deltas) == reference.decode(ids, skip_special_tokens=True)

    holds()


@pytest.mark.parametrize("source", ALL)
def test_deltas_of_any_text_cut_anywhere_join_to_the_library_s_full_decode(source):
    ours, reference = loaded(source)

    @given(st.text(), st.lists(st.integers(0, 1000)))
    def holds(text, cuts):
        ids = ours.encode(text)
        detokenizer = Detokenizer(ours.vocabulary)
        deltas = [detokenizer.feed(part) for part in cut(ids, cuts)] + [detokenizer.flush()]
        assert "".join(deltas) == reference.decode(ids, skip_special_tokens=True)

    holds()


def test_byte_fallback_ids_of_any_kind_join_to_one_decode_for_any_split():
    ours, _ = loaded(stories_json)

    @given(st.lists(st.integers(0, 511)), st.lists(st.integers(0, 1000)))
    def holds(ids, cuts):
        detokenizer = Detokenizer(ours.vocabulary)
        deltas = [detokenizer.feed(part) for part in cut(ids, cuts)] + [detokenizer.flush()]
        assert "".join(deltas) == decode(ours.vocabulary, ids)

    holds()


@pytest.mark.parametrize("source", ALL)
def test_no_delta_ever_shows_part_of_a_character(source):
    ours, _ = loaded(source)
    detokenizer = Detokenizer(ours.vocabulary)
    deltas = [detokenizer.feed([token_id]) for token_id in ours.encode(POEM)]
    assert "�" not in "".join(deltas)
    assert detokenizer.flush() == ""
    assert "" in deltas, "the poem has characters of several tokens, so some tokens complete none"


def test_an_answer_cut_inside_a_character_ends_in_the_replacement_character():
    ours, _ = loaded(gpt2_json)
    ids = ours.encode("🙂")
    detokenizer = Detokenizer(ours.vocabulary)
    assert len(ids) > 1
    assert detokenizer.feed(ids[:-1]) == ""
    assert detokenizer.flush() == "�"


def test_special_tokens_and_ids_without_a_piece_add_nothing():
    ours, reference = loaded(gpt2_json)
    hello, end = ours.encode("Hello"), reference.token_to_id("<|endoftext|>")
    assert decode(ours.vocabulary, [end, *hello, end, 99_999]) == "Hello"


def test_golden_stories_decode_to_their_published_text():
    ours, _ = loaded(stories_json)
    golden = json.loads((STORIES / "golden_greedy.json").read_text())
    assert len(golden["cases"]) == 6
    for case in golden["cases"]:
        ids, text = case.get("ids") or case["prompt_ids"] + case["greedy_ids"], case.get("decoded") or case["text"]
        assert decode(ours.vocabulary, ids) == text


def test_an_answer_that_continues_a_line_keeps_its_leading_space():
    ours, _ = loaded(stories_json)
    ids = ours.encode("time")
    assert decode(ours.vocabulary, ids, begins_text=True) == "time"
    assert decode(ours.vocabulary, ids, begins_text=False) == " time"


def test_only_the_first_space_of_a_text_is_dropped_even_behind_empty_feeds():
    ours, _ = loaded(stories_json)
    space = ours.encode(" ")
    detokenizer = Detokenizer(ours.vocabulary)
    assert [detokenizer.feed(part) for part in ([1], [space[-1]], [space[-1]], [1])] == ["", "", " ", ""]


def test_feeding_the_old_ids_first_resumes_in_the_middle_of_a_character():
    ours, _ = loaded(smollm2_json)
    ids = ours.encode(POEM)
    for border in range(len(ids)):
        first, second = Detokenizer(ours.vocabulary), Detokenizer(ours.vocabulary)
        shown = first.feed(ids[:border])
        assert second.feed(ids[:border]) == shown
        assert shown + second.feed(ids[border:]) + second.flush() == decode(ours.vocabulary, ids)


def test_a_decoder_of_another_family_is_rejected_by_name():
    wordpiece = Reference(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    wordpiece.decoder = decoders.WordPiece()
    with pytest.raises(ModelTextUnusable, match="not WordPiece"):
        Tokenizer(wordpiece.to_str())
