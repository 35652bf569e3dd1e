"""Text to token ids, with the tokenizer of a model's card."""

import json
from typing import Any

from tokenizers import Tokenizer as Encoder

from penstock.chassis.errors import InvalidArgument
from penstock.edge import limits
from penstock.edge.text.errors import ModelTextUnusable
from penstock.edge.text.vocabulary import Vocabulary, build_vocabulary


class Tokenizer:
    """One model's tokenizer. Nothing in it changes after it was made, so threads may share it.

    Encoding 4 MiB takes seconds and lets go of the interpreter lock: call `encode` in a thread.
    """

    __slots__ = ("_encoder", "special_ids", "vocabulary")

    def __init__(self, tokenizer_json: str) -> None:
        """Raise ModelTextUnusable for a JSON that is no tokenizer, or one whose decoder this edge does not know."""
        self._encoder = _encoder(tokenizer_json)
        added = self._encoder.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        ids = self._encoder.get_vocab(with_added_tokens=True)
        self.vocabulary: Vocabulary = build_vocabulary(ids, self.special_ids, _decoder_rules(tokenizer_json))

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of `text`. Special tokens written in it count as such: a rendered template depends on that.

        `add_special` puts in what the tokenizer's own post-processor adds, such as a beginning-of-sequence id.
        """
        size = len(text.encode(errors="surrogatepass"))
        if size > limits.RENDERED_BYTES:
            raise InvalidArgument(
                f"the prompt has {size} bytes of text; at most {limits.RENDERED_BYTES} are tokenized", field="input"
            )
        ids: list[int] = self._encoder.encode(text, add_special_tokens=add_special).ids
        return ids

    def token(self, token_id: int) -> str:
        """The token as a chat template writes it; empty for an id without one."""
        return self._encoder.id_to_token(token_id) or ""


def _encoder(tokenizer_json: str) -> Encoder:
    try:
        encoder = Encoder.from_str(tokenizer_json)
    except Exception as error:  # the Rust side raises no narrower type
        raise ModelTextUnusable(f"the model's tokenizer.json does not load: {error}") from error
    encoder.no_truncation()  # files often carry a training length; a prompt is refused whole, never cut
    encoder.no_padding()
    return encoder


def _decoder_rules(tokenizer_json: str) -> dict[str, Any]:
    decoder = json.loads(tokenizer_json).get("decoder")
    if not isinstance(decoder, dict):
        raise ModelTextUnusable("the model's tokenizer.json has no decoder section, so its ids cannot become text")
    return decoder
