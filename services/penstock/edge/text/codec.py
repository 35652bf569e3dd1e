"""Text codec of one model: prompts to token ids, and token ids to text."""

import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from penstock.edge.output.answer import PLAIN, OutputFormat
from penstock.edge.output.grammar import enforced_form
from penstock.edge.request import limits
from penstock.edge.request.spec import ChatInput, Prompt, TextInput, TokenInput
from penstock.edge.text.detokenizer import StoppingDetokenizer
from penstock.edge.text.errors import ModelTextUnusable, PromptEmpty, TokenUnknown
from penstock.edge.text.template import ChatTemplate
from penstock.edge.text.tokenizer import Tokenizer
from penstock.edge.text.vocabulary import Vocabulary
from penstock.mesh.forms import Form
from penstock.mesh.v1.worker_pb2 import ModelCard

_TOKENIZER_BYTES = 256 << 20  # after decompression; the largest public ones have 35 MB


@dataclass(frozen=True, slots=True)
class TextCodec:
    """Tokenizer and chat template of one model. Immutable, so threads may share it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    bos_token_id: int | None
    vocabulary_size: int
    marker_ids: Mapping[str, int] = field(
        default_factory=dict
    )  # markers of calls and reasoning that are special tokens
    marked_vocabulary: Vocabulary | None = None  # in which these have a text; None if there are none

    def prompt_ids(self, prompt: Prompt, now: datetime) -> "array[int]":
        """Return the ids to prefill. Raises InvalidArgument. Long text takes long: call it in a thread."""
        ids = self._ids(prompt, now)
        if not ids:
            raise PromptEmpty("the prompt has no token; send some text, or a message", field="input")
        return ids

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, also of special ones."""
        return [self.tokenizer.describe(each).text for each in ids]

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of a sequence of tokens, with that of special ones. Raises TokenUnknown."""
        tokens = [self.tokenizer.describe(each) for each in self._checked_ids(tuple(ids))]
        encoded = [each.text.encode() if each.encoded is None else each.encoded for each in tokens]
        text = b"".join(encoded).decode(errors="replace")
        return text.removeprefix(" " * self.tokenizer.vocabulary.leading_spaces)

    def new_detokenizer(
        self, prompt: Prompt, prompt_ids: Sequence[int], stops: Sequence[str], *, shows_markers: bool = False
    ) -> StoppingDetokenizer:
        """Return a detokenizer for an answer. A chat turn is a new text; other answers continue the prompt's.

        `shows_markers`: markers of tool calls and reasoning that are special tokens have a text.
        """
        vocabulary = (shows_markers and self.marked_vocabulary) or self.tokenizer.vocabulary
        begins_text = isinstance(prompt, ChatInput) or vocabulary.is_blank(prompt_ids)
        return StoppingDetokenizer(vocabulary, stops, begins_text=begins_text)

    def output_format(self, prompt: Prompt, form: Form | None) -> OutputFormat:
        """Return how the text of an answer is to be divided into reasoning, content and tool calls.

        `form`: of the request. The whole output obeys it, so that there is no reasoning before it.
        """
        if not isinstance(prompt, ChatInput):
            return PLAIN
        tools, template = prompt.shown_tools, self.template
        reasoning = None if form and not prompt.must_call else template.reasoning
        if not tools and reasoning is None:
            return PLAIN
        return OutputFormat(
            tool_names=frozenset(tool.name for tool in tools),
            tool_format=template.tool_format,
            max_calls=limits.TOOL_CALLS if prompt.parallel_tool_calls else 1,
            reasoning=reasoning,
            begins_in_reasoning=reasoning is not None and template.opens_reasoning,
        )

    def enforced_form(self, prompt: Prompt, form: Form | None, *, can_enforce: bool) -> Form | None:
        """Return the form that the engine enforces: that of the request, or a grammar of tool calls.

        `can_enforce`: whether a form may be added to a request that demands none.
        """
        if not isinstance(prompt, ChatInput) or not prompt.tools:
            return form
        output = self.output_format(prompt, form)
        return enforced_form(prompt, form, output, self.marker_ids, can_enforce=can_enforce)

    def _ids(self, prompt: Prompt, now: datetime) -> "array[int]":
        match prompt:
            case TextInput(text):
                bos = array("I", () if self.bos_token_id is None else (self.bos_token_id,))
                return bos + self.tokenizer.encode(text)
            case ChatInput(messages):
                # Without a BOS, because the template writes its own.
                escape = self.tokenizer.escape_special_tokens
                return self.tokenizer.encode(
                    self.template.render(messages, now, tools=prompt.shown_tools, escape=escape)
                )
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
    marker_ids = {each: found for each in _markers(template) if (found := tokenizer.special_id(each)) is not None}
    marked = tokenizer.vocabulary.with_texts(marker_ids) if marker_ids else None
    return TextCodec(tokenizer, template, bos, card.vocabulary_size, marker_ids, marked)


def _markers(template: ChatTemplate) -> Iterator[str]:
    yield from (template.tool_format.begin, template.tool_format.end, template.tool_format.arguments_marker)
    if template.reasoning:
        yield from (template.reasoning.begin, template.reasoning.end)


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
