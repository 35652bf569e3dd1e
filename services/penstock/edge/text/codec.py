"""All that one model's card says about text, ready to use."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.edge.request.spec import ChatInput, Message, Prompt, TextInput, TokenInput
from penstock.edge.text.detokenizer import StoppingDetokenizer
from penstock.edge.text.errors import ModelTextUnusable, PromptEmpty, TokenUnknown
from penstock.edge.text.template import ChatTemplate
from penstock.edge.text.tokenizer import Tokenizer
from penstock.mesh.v1.worker_pb2 import ModelCard

_TOKENIZER_BYTES = 256 << 20  # unpacked; the largest public ones have 35 MB


@dataclass(frozen=True, slots=True)
class TextCodec:
    """Prompts to ids and ids to answers, for one model. Immutable; threads may share it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    bos_token_id: int | None
    vocabulary_size: int

    def prompt_ids(self, prompt: Prompt, now: datetime) -> list[int]:
        """Ids to prefill. Slow for long text: call it in a thread. Raises InvalidArgument, or a kind of it."""
        ids = self._ids(prompt, now)
        if not ids:
            raise PromptEmpty("the prompt has no token; send some text, or a message", field="input")
        return ids

    def new_detokenizer(self, prompt: Prompt, prompt_ids: Sequence[int], stops: Sequence[str]) -> StoppingDetokenizer:
        """A chat turn begins a text of its own; any other answer goes on where the prompt's text ends."""
        begins_text = isinstance(prompt, ChatInput) or self.tokenizer.vocabulary.is_blank(prompt_ids)
        return StoppingDetokenizer(self.tokenizer.vocabulary, stops, begins_text=begins_text)

    def _ids(self, prompt: Prompt, now: datetime) -> list[int]:
        match prompt:
            case TextInput(text):
                bos = [] if self.bos_token_id is None else [self.bos_token_id]
                return bos + self.tokenizer.encode(text)
            case ChatInput(messages):
                disarm = self.tokenizer.escape_special_tokens
                written = [Message(disarm(each.role), disarm(each.content)) for each in messages]
                return self.tokenizer.encode(self.template.render(written, now))  # writes its own BOS, if any
            case TokenInput(ids):
                return self._checked_ids(ids)

    def _checked_ids(self, ids: tuple[int, ...]) -> list[int]:
        for position, token_id in enumerate(ids):
            if not 0 <= token_id < self.vocabulary_size:
                raise TokenUnknown(
                    f"token id {token_id} at position {position} is not in the model's vocabulary; "
                    f"its ids are 0 to {self.vocabulary_size - 1}",
                    field="token_ids",
                )
        return list(ids)


def codec_from(card: ModelCard) -> TextCodec:
    """Raise ModelTextUnusable where the card's tokenizer or template is broken. Takes up to a second: use a thread."""
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
        raise ModelTextUnusable(f"the tokenizer in the model's card is cut short, or above {_TOKENIZER_BYTES} bytes")
    return text
