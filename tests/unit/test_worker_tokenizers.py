import json

import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from penstock.worker.engine.loaders import ModelUnsupported
from penstock.worker.engine.loaders.tokenizers import byte_level_bpe, sentencepiece_bpe
from real_tokenizers import gpt2_json

TEXTS = [
    "The gate opens.  Water flows\n\nthrough 12345 turbines, doesn't it?",
    "Émile naïve café 你好 🙂",
    "def f(x):\n\treturn x ** 2  # comment\r\n",
    "",
]


def alphabet_of(*more):
    return [*sorted(ByteLevel.alphabet()), *more]


def pre_tokens(flavour, text):
    """The split of a text by a flavour, shown by a tokenizer without merges."""
    tokenizer = Tokenizer.from_str(byte_level_bpe(alphabet_of(), [], flavour, [], []))
    return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def test_gpt2s_tokenizer_is_rebuilt_exactly_from_its_vocabulary():
    source = gpt2_json()
    model = json.loads(source)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    ours, theirs = (
        Tokenizer.from_str(byte_level_bpe(tokens, merges, "gpt-2", ["<|endoftext|>"], [])),
        Tokenizer.from_str(source),
    )
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == ids
        assert ours.decode(ids) == text


@pytest.mark.parametrize(
    ("flavour", "expected"),
    [
        ("gpt-2", ["a", " 12345", " b"]),
        ("smollm", ["a", " ", "1", "2", "3", "4", "5", " b"]),
        ("llama-bpe", ["a", " ", "123", "45", " b"]),
        ("qwen2", ["a", " ", "1", "2", "3", "4", "5", " b"]),
    ],
)
def test_flavours_differ_in_how_they_cut_numbers(flavour, expected):
    assert pre_tokens(flavour, "a 12345 b") == expected


@pytest.mark.parametrize("flavour", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_flavour_gives_each_text_back(flavour, text):
    tokenizer = Tokenizer.from_str(byte_level_bpe(alphabet_of(), [], flavour, [], []))
    expected = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    assert tokenizer.decode(tokenizer.encode(text).ids) == expected


def test_an_unknown_flavour_is_rejected_by_name():
    with pytest.raises(ModelUnsupported, match="'tekken' is not supported"):
        byte_level_bpe(alphabet_of(), [], "tekken", [], [])


def test_special_tokens_are_found_in_the_text_and_left_out_when_decoding():
    tokens = alphabet_of("<|im_end|>", "<tool>")
    tokenizer = Tokenizer.from_str(byte_level_bpe(tokens, [], "smollm", ["<|im_end|>"], ["<tool>"]))
    ids = tokenizer.encode("a<|im_end|><tool>").ids
    assert ids == [tokens.index("a"), tokens.index("<|im_end|>"), tokens.index("<tool>")]
    assert tokenizer.decode(ids) == "a<tool>"


SPM_PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab", "▁a"]
SPM_SCORES = [0.0] * 259 + [-10.0, -11.0, -12.0, -1.0, -2.0, -3.0]


def spm():
    return Tokenizer.from_str(sentencepiece_bpe(SPM_PIECES, SPM_SCORES, ["<s>", "</s>"], space="▁", unknown="<unk>"))


def test_sentencepiece_merges_the_best_scored_pair_first():
    assert spm().encode("ab").tokens == ["▁ab"]
    assert spm().encode("a ab").tokens == ["▁a", "▁ab"]


def test_sentencepiece_falls_back_to_bytes_and_drops_its_own_leading_space():
    tokenizer = spm()
    encoded = tokenizer.encode("aé b")
    assert encoded.tokens == ["▁a", "<0xC3>", "<0xA9>", "▁", "b"]
    assert tokenizer.decode(encoded.ids) == "aé b"
