"""Request spec: the values of a generation request, common to all APIs. `validate` checks the public limits."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.edge.request.tools import AUTO, Tool, ToolCall, ToolChoice, ToolMode
from penstock.mesh.forms import Form
from penstock.v1.inference_pb2 import Priority


class Message(NamedTuple):
    """One turn of a conversation. A tuple, because it is made faster than a frozen class."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant's turn
    tool_call_id: str = ""  # of the call that a tool's turn answers
    name: str = ""  # of the author, or of the tool
    reasoning: str = ""  # of an assistant's turn

    @property
    def is_plain(self) -> bool:
        """Whether the message has a role and a content only."""
        return not (self.tool_calls or self.tool_call_id or self.name or self.reasoning)


@dataclass(frozen=True, slots=True)
class TextInput:
    text: str  # tokenized without a chat template


@dataclass(frozen=True, slots=True)
class ChatInput:
    messages: tuple[Message, ...]  # oldest first; rendered with the model's template
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True  # whether an answer may make more than one call

    @property
    def shown_tools(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        return () if self.tool_choice.mode is ToolMode.NONE else self.tools

    @property
    def must_call(self) -> bool:
        """Whether the answer is a tool call by force."""
        return self.tool_choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED)


@dataclass(frozen=True, slots=True)
class TokenInput:
    ids: tuple[int, ...]


Prompt = TextInput | ChatInput | TokenInput


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSpec:
    """One request: a prompt and how to continue it. The defaults are those of the public contract."""

    request_id: str
    model: str  # empty: the only served model
    input: Prompt
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    min_p: float = 0.0  # 0: all tokens
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # 64 bits; None: drawn by the edge
    max_output_tokens: int | None = None  # None: the rest of the context, at most the edge's default
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False  # of each generated token
    explain: bool = False  # whether the answer carries its timeline
    priority: Priority.ValueType = Priority.PRIORITY_UNSPECIFIED
    timeout_s: float | None = None  # s from arrival to the last token; None: the edge's default
    resume_ids: tuple[int, ...] = ()  # tokens of the answer that the caller has already
    answer_id: str = ""  # of the answer that this request continues, as the first edge named it; empty: none or unknown
    is_first_run: bool = False  # of `answer_id`, which the caller has chosen in this case
    model_version: str = ""  # of the model that generated `resume_ids`; empty: unknown
    form: Form | None = None  # of the output; None: free text
    n: int = 1  # answers
    top_logprobs: int = 0  # likeliest tokens beside each token; above 0 only with `logprobs`
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its score), by id
    embeds: bool = False  # whether the embedding of the prompt is wanted, by `model_version`, and no output

    @property
    def is_continued(self) -> bool:
        """Whether an earlier request of the answer may have run."""
        return bool(self.resume_ids or (self.answer_id and not self.is_first_run))
