"""Text codec of one model: prompts to token ids, and token ids to text."""

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.edge.request.spec import ChatInput, Message, Prompt, TextInput, TokenInput
from penstock.edge.text.detokenizer import StoppingDetokenizer
from penstock.edge.text.errors import ModelTextUnusable, PromptEmpty, TokenUnknown
from penstock.edge.text.template import ChatTemplate
from penstock.edge.text.tokenizer import Tokenizer
from penstock.mesh.v1.worker_pb2 import ModelCard

_TOKENIZER_BYTES = 256 << 20  # after decompression; the largest public ones have 35 MB


@dataclass(frozen=True, slots=True)
class TextCodec:
    """Tokenizer and chat template of one model. Immutable, so threads may share it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    bos_token_id: int | None
    vocabulary_size: int

    def prompt_ids(self, prompt: Prompt, now: datetime) -> "array[int]":
        """Return the ids to prefill. Raises InvalidArgument. Long text takes long: call it in a thread."""
        ids = self._ids(prompt, now)
        if not ids:
            raise PromptEmpty("the prompt has no token; send some text, or a message", field="input")
        return ids

    def new_detokenizer(self, prompt: Prompt, prompt_ids: Sequence[int], stops: Sequence[str]) -> StoppingDetokenizer:
        """Return a detokenizer for an answer. A chat turn is a new text; other answers continue the prompt's."""
        begins_text = isinstance(prompt, ChatInput) or self.tokenizer.vocabulary.is_blank(prompt_ids)
        return StoppingDetokenizer(self.tokenizer.vocabulary, stops, begins_text=begins_text)

    def _ids(self, prompt: Prompt, now: datetime) -> "array[int]":
        match prompt:
            case TextInput(text):
                bos = array("I", () if self.bos_token_id is None else (self.bos_token_id,))
                return bos + self.tokenizer.encode(text)
            case ChatInput(messages):
                escape = self.tokenizer.escape_special_tokens
                escaped = [Message(escape(each.role), escape(each.content)) for each in messages]
                # Without a BOS, because the template writes its own.
                return self.tokenizer.encode(self.template.render(escaped, now))
            case TokenInput(ids):
                return self._checked_ids(ids)

    def _checked_ids(self, ids: tuple[int, ...]) -> "array[int]":
        for position, token_id in enumerate(ids):
            if not 0 <= token_id < self.vocabulary_size:
                raise TokenUnknown(
                    f"token id {token_id} at position {position} is not in the model's vocabulary; "
                    f"its ids are 0 to {self.vocabulary_size - 1}",
                    field="token_ids",
                )
        return array("I", ids)


def codec_from(card: ModelCard) -> TextCodec:
    """Build the codec of a card. Raises ModelTextUnusable if it is broken. Takes up to 1 s: call it in a thread."""
    tokenizer = Tokenizer(_unpacked(card.tokenizer_json_zlib))
    bos = card.bos_token_id if card.HasField("bos_token_id") else None
    template = ChatTemplate(
        card.chat_template,
        bos_token="" if bos is None else tokenizer.token_text(bos),
        eos_token=tokenizer.token_text(card.eos_token_ids[0]) if card.eos_token_ids else "",
    )
    return TextCodec(tokenizer, template, bos, card.vocabulary_size)


def _unpacked(packed: bytes) -> str:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, _TOKENIZER_BYTES).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise ModelTextUnusable(f"the tokenizer in the model's card does not unpack: {error}") from error
    if not unpacker.eof:
        raise ModelTextUnusable(
            f"the tokenizer in the model's card is cut short, or larger than {_TOKENIZER_BYTES} bytes"
        )
    return text
