"""Request spec: the values of a generation request, common to all APIs. `validate` checks the public limits."""

from dataclasses import dataclass

from penstock.mesh.forms import Form
from penstock.v1.inference_pb2 import Priority


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class TextInput:
    text: str  # tokenized without a chat template


@dataclass(frozen=True, slots=True)
class ChatInput:
    messages: tuple[Message, ...]  # oldest first; rendered with the model's template


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
    model_version: str = ""  # of the model that generated `resume_ids`; empty: unknown
    form: Form | None = None  # of the output; None: free text
    n: int = 1  # answers
    top_logprobs: int = 0  # likeliest tokens beside each token; above 0 only with `logprobs`
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its score), by id
