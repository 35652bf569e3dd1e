"""Text to token ids, with the tokenizer of a model card."""

import json
import re
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits
from penstock.edge.text.errors import ModelTextUnusable
from penstock.edge.text.token_text import TokenText
from penstock.edge.text.turn_cache import TurnCache
from penstock.edge.text.vocabulary import Vocabulary, build_vocabulary

# A noncharacter, which no text contains. It splits text that looks like a special token.
SPECIAL_TOKEN_BREAK = "\ufdd0"  # noqa: S105 - no password
MAX_DIVIDED_CHARS = 64 << 10  # of a text; a longer one is dominated by turns that are too long for the cache


class Tokenizer:
    """Tokenizer of one model, which threads may share.

    Encoding 4 MiB takes seconds and releases the interpreter lock: call `encode` in a thread.
    """

    __slots__ = ("_divides_turns", "_encoder", "_special_text", "_turns", "special_ids", "vocabulary")

    def __init__(self, tokenizer_json: str) -> None:
        """Raise ModelTextUnusable if the JSON is not a tokenizer or has an unknown decoder."""
        self._encoder = _encoder(tokenizer_json)
        added = self._encoder.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_text = _pattern_of_any({token.content for token in added.values() if token.special})
        self._divides_turns = _are_separate(added)
        self._turns = TurnCache()
        ids = self._encoder.get_vocab(with_added_tokens=True)
        self.vocabulary: Vocabulary = build_vocabulary(ids, self.special_ids, _decoder_rules(tokenizer_json))

    def encode(self, text: str) -> "array[int]":
        """Return the ids of `text`. Special tokens in it are recognized, except those that were escaped.

        Text between special tokens is encoded by itself, so the ids of each turn of a conversation are cached.
        """
        size = len(text.encode(errors="surrogatepass"))
        if size > limits.RENDERED_BYTES:
            raise InvalidArgument(
                f"the prompt has {size} bytes of text; at most {limits.RENDERED_BYTES} are tokenized", field="input"
            )
        pieces = text.split(SPECIAL_TOKEN_BREAK)
        is_short = len(text) <= MAX_DIVIDED_CHARS
        if is_short:
            pieces = [turn for piece in pieces for turn in self._divided(piece)]
        known = [self._turns.find(piece) if is_short else None for piece in pieces]
        missing = [piece for piece, ids in zip(pieces, known, strict=True) if ids is None]
        # In one call, which releases the interpreter lock: a text may have very many pieces.
        encoded = iter(self._encoder.encode_batch_fast(missing, add_special_tokens=False) if missing else ())
        all_ids = array("I")
        for piece, cached in zip(pieces, known, strict=True):
            ids = array("I", next(encoded).ids) if cached is None else cached
            if cached is None and is_short:
                self._turns.add(piece, ids)
            all_ids += ids
        return all_ids

    def _divided(self, text: str) -> Iterator[str]:
        """Divide a text before its special tokens."""
        begin = 0
        if self._divides_turns:
            for special in self._special_text.finditer(text):
                if begin < special.start():
                    yield text[begin : special.start()]
                    begin = special.start()
        yield text[begin:]

    def escape_special_tokens(self, text: str) -> str:
        """Escape special tokens in a caller's text, so that a message cannot end its turn and forge another.

        They are encoded as plain characters.
        """
        return self._special_text.sub(
            lambda found: found[0][0] + SPECIAL_TOKEN_BREAK + found[0][1:], text.replace(SPECIAL_TOKEN_BREAK, "")
        )

    def special_id(self, text: str) -> int | None:
        """Return the id of a special token. None if `text` is none."""
        token_id = self._encoder.token_to_id(text)
        return token_id if token_id in self.special_ids else None

    def token_text(self, token_id: int) -> str:
        """Return the text of a token for chat templates. Empty for an unknown id."""
        return self._encoder.id_to_token(token_id) or ""

    def describe(self, token_id: int) -> TokenText:
        """Return the text of one token for readers of log probabilities."""
        if token_id in self.special_ids or token_id >= len(self.vocabulary.pieces):
            return TokenText(self.token_text(token_id), None)
        encoded = self.vocabulary.pieces[token_id]
        try:
            return TokenText(encoded.decode(), encoded)
        except UnicodeDecodeError:
            return TokenText("".join(f"\\x{byte:02x}" for byte in encoded), encoded)


def _pattern_of_any(texts: set[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of `texts`, the longest first. It matches nothing if `texts` is empty."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True) if text) or "(?!)")


def _are_separate(added: Mapping[int, AddedToken]) -> bool:
    """Return whether a text may be divided before its special tokens without a change of its ids.

    Not if a special token takes in text around it, is looked for in text that was changed before, or is a part of
    another added token.
    """
    special = [token for token in added.values() if token.special]
    contents = [token.content for token in added.values()]
    return not any(
        token.lstrip
        or token.single_word
        or token.normalized
        or any(token.content != other and token.content in other for other in contents)
        for token in special
    )


def _encoder(tokenizer_json: str) -> Encoder:
    try:
        encoder = Encoder.from_str(tokenizer_json)
    except Exception as error:  # the Rust library raises no narrower type
        raise ModelTextUnusable(f"the model's tokenizer.json does not load: {error}") from error
    encoder.no_truncation()  # files often contain a training length; a long prompt is rejected, not truncated
    encoder.no_padding()
    return encoder


def _decoder_rules(tokenizer_json: str) -> dict[str, Any]:
    decoder = json.loads(tokenizer_json).get("decoder")
    if not isinstance(decoder, dict):
        raise ModelTextUnusable("the model's tokenizer.json has no decoder section, so its ids cannot become text")
    return decoder
