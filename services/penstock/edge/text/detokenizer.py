"""Incremental detokenizer of one answer."""

import codecs
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.edge.text.stops import StopStrings
from penstock.edge.text.vocabulary import Vocabulary

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextDelta(NamedTuple):
    """Text that one more token adds to an answer, and the stop string that it completed, if any."""

    text: str
    stop_string: str = ""


class Detokenizer:
    """Converts token ids to text incrementally. Returns only whole characters and no special tokens.

    All results of `feed` and `flush` together equal `decode` of all ids. Invalid UTF-8 becomes U+FFFD, as when a
    byte-level tokenizer decodes all ids at once. To resume, feed the old ids first.
    """

    __slots__ = ("_is_within_character", "_pieces", "_spaces_to_drop", "_utf8", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, *, begins_text: bool = True) -> None:
        """`begins_text`: the answer is a new text, as in a chat turn, and does not continue the prompt's text."""
        self._vocabulary = vocabulary
        self._pieces = vocabulary.pieces
        self._is_within_character = False
        self._utf8 = _utf8_decoder(errors="replace")
        self._spaces_to_drop = vocabulary.leading_spaces if begins_text else 0

    def feed(self, ids: Iterable[int]) -> str:
        text = self._decode(self._vocabulary.bytes_of(ids))
        return self._without_leading_spaces(text) if self._spaces_to_drop and text else text

    def feed_one(self, token_id: int) -> str:
        """Return what `feed` returns for one id. Most tokens are whole characters, which need no decoder with state."""
        piece = self._pieces[token_id] if token_id < len(self._pieces) else b""
        if self._is_within_character:
            text = self._decode(piece)
        else:
            try:
                text = piece.decode()
            except UnicodeDecodeError:
                text = self._decode(piece)
        return self._without_leading_spaces(text) if self._spaces_to_drop and text else text

    def flush(self) -> str:
        """Return U+FFFD for an incomplete character at the end of the answer, otherwise an empty string."""
        return self._utf8.decode(b"", final=True)

    def _decode(self, encoded: bytes) -> str:
        text = self._utf8.decode(encoded)
        self._is_within_character = bool(self._utf8.getstate()[0])
        return text

    def _without_leading_spaces(self, text: str) -> str:
        while self._spaces_to_drop and text.startswith(" "):
            text = text[1:]
            self._spaces_to_drop -= 1
        if text:
            self._spaces_to_drop = 0
        return text


def decode(vocabulary: Vocabulary, ids: Iterable[int], *, begins_text: bool = True) -> str:
    detokenizer = Detokenizer(vocabulary, begins_text=begins_text)
    return detokenizer.feed(ids) + detokenizer.flush()


class StoppingDetokenizer:
    """Detokenizer that ends at stop strings. To resume, push the tokens emitted before and drop their text."""

    __slots__ = ("_detokenizer", "_new", "_stops")

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str] = (), *, begins_text: bool = True) -> None:
        self._new = partial(StoppingDetokenizer, vocabulary, stops, begins_text=begins_text)
        self._detokenizer = Detokenizer(vocabulary, begins_text=begins_text)
        self._stops = StopStrings(stops) if stops else None

    def new(self) -> "StoppingDetokenizer":
        """Return a detokenizer of another answer to the same prompt."""
        return self._new()

    def push(self, token_id: int) -> TextDelta:
        text = self._detokenizer.feed_one(token_id)
        if self._stops is None:
            return TextDelta(text)
        safe, stop = self._stops.feed(text)
        return TextDelta(safe, stop or "")

    def flush(self) -> str:
        text = self._detokenizer.flush()
        if not self._stops:
            return text
        safe, _ = self._stops.feed(text)
        return safe + self._stops.flush()


class RecordingDetokenizer:
    """Detokenizer that keeps the text of its answer, whose tool calls are parsed at the end."""

    __slots__ = ("_inner", "_texts")

    def __init__(self, inner: StoppingDetokenizer) -> None:
        self._inner = inner
        self._texts: list[str] = []

    def new(self) -> "RecordingDetokenizer":
        """Return a detokenizer of another answer to the same prompt."""
        return RecordingDetokenizer(self._inner.new())

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def push(self, token_id: int) -> TextDelta:
        delta = self._inner.push(token_id)
        self._texts.append(delta.text)
        return delta

    def flush(self) -> str:
        text = self._inner.flush()
        self._texts.append(text)
        return text
