"""Vocabulary: the bytes of each token id, computed once from tokenizer.json, so that decoding is a table lookup."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.edge.text.errors import ModelTextUnusable

PieceBytes = Callable[[str], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of every id. A special token and an unknown id have none."""

    pieces: Sequence[bytes]
    leading_spaces: int  # dropped at the start of a text; sentencepiece adds them before the first word

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        pieces, size = self.pieces, len(self.pieces)
        return b"".join([pieces[each] for each in ids if each < size])

    def with_texts(self, ids: Mapping[str, int]) -> "Vocabulary":
        """Return a vocabulary in which these ids, which are special tokens, have a text."""
        pieces = list(self.pieces)
        for text, token_id in ids.items():
            pieces[token_id] = text.encode()
        return Vocabulary(pieces, self.leading_spaces)

    def is_blank(self, ids: Iterable[int]) -> bool:
        """Return whether `ids` have no text, so that the next token begins a text."""
        return not any(self.bytes_of((each,)) for each in ids)


def build_vocabulary(ids: Mapping[str, int], special_ids: frozenset[int], decoder: Mapping[str, Any]) -> Vocabulary:
    """Build the vocabulary of all `ids` by the rules of the `decoder` section of tokenizer.json."""
    bytes_of, leading_spaces = _rules(decoder)
    pieces = [b""] * (max(ids.values(), default=-1) + 1)
    for piece, token_id in ids.items():
        if token_id not in special_ids:
            pieces[token_id] = bytes_of(piece)
    return Vocabulary(pieces, leading_spaces)


def _rules(decoder: Mapping[str, Any]) -> tuple[PieceBytes, int]:
    """Return the conversion of a piece to bytes, and the number of spaces to drop at the start of a text."""
    steps: list[Mapping[str, Any]] = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [str(step.get("type")) for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, 0
    if "Fuse" in kinds:
        before, after = steps[: kinds.index("Fuse")], steps[kinds.index("Fuse") + 1 :]
        if all(map(_is_piecewise, before)) and all(map(_is_leading_strip, after)):
            swaps = [(step["pattern"]["String"], step["content"]) for step in before if step["type"] == "Replace"]
            return _sentencepiece(swaps, has_bytes="ByteFallback" in kinds), sum(int(step["start"]) for step in after)
    raise ModelTextUnusable(
        f"this edge decodes byte-level BPE and sentencepiece tokenizers, not {', '.join(kinds)}; "
        "export the model's tokenizer with one of those decoders"
    )


def _is_piecewise(step: Mapping[str, Any]) -> bool:
    return bool(step["type"] == "ByteFallback" or (step["type"] == "Replace" and "String" in step["pattern"]))


def _is_leading_strip(step: Mapping[str, Any]) -> bool:
    return bool(step["type"] == "Strip" and step["content"] == " " and step["stop"] == 0)


def _sentencepiece(swaps: Sequence[tuple[str, str]], *, has_bytes: bool) -> PieceBytes:
    def bytes_of(piece: str) -> bytes:
        if has_bytes and (byte := _BYTE_TOKEN.fullmatch(piece)):
            return bytes((int(byte[1], 16),))
        for old, new in swaps:
            piece = piece.replace(old, new)
        return piece.encode()

    return bytes_of


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each printable character of byte-level BPE (GPT-2, Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in piece])
    except KeyError:  # a token that was added as plain text, for example with a space in it
        return piece.encode()
