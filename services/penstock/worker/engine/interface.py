"""The interface of an engine: the values that it receives and returns, and the protocol that every engine satisfies.

They are plain values without tensors, because they cross the pipe between the worker's two processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from penstock.mesh.forms import Form
from penstock.mesh.prefill_rank import DEFAULT_RANK


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-sequence or stop id, which is the last token emitted
    LENGTH = "length"


MAX_TOP_LOGPROBS = 20  # likeliest tokens at one position


class Pooling(StrEnum):
    """How the hidden states of a prompt, after the final norm, become its embedding."""

    LAST = "last"  # the state of the last token
    MEAN = "mean"  # the mean over all tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0  # share of the likeliest token's probability
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # 0 or 1: none
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added to its logit)
    logprobs: bool = False  # of the model's own distribution, before penalties, constraint and truncation
    top_logprobs: int = 0  # of the likeliest tokens of that distribution, beside each token; at most the vocabulary


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Restricts the output to these ids and the ids that end a run."""

    token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class AllowedChoices:
    """Restricts the output to one of these token sequences, followed by an id that ends the run."""

    choices: tuple[tuple[int, ...], ...]

    @property
    def token_ids(self) -> frozenset[int]:
        return frozenset(token for choice in self.choices for token in choice)


OutputConstraint = AllowedTokens | AllowedChoices | Form


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """One run. A resumed run differs only in `emitted`; its text continues as if it had never stopped."""

    seq_id: int
    token_ids: Sequence[int]  # prompt, then the tokens that earlier runs emitted
    emitted: int = 0  # number of the last `token_ids` that earlier runs emitted; the next token has this index
    max_output_tokens: int  # still to generate, at least 1
    stop_ids: frozenset[int] = frozenset()  # beside the model's end-of-sequence ids
    ignore_eos: bool = False
    sampling: SamplingParams = SamplingParams()
    constraint: OutputConstraint | None = None  # ignored by a simulated engine
    seed: int = 0
    # Runs with equal salts share the KV of equal prefixes, also while it is being computed. The salt is the tenant's or
    # one generated for the completions of a single request. Empty: no sharing.
    cache_salt: bytes = b""
    prefill_rank: int = DEFAULT_RANK  # sequences of lower ranks are prefilled first
    embeds: bool = False  # finishes at the end of the prefill with an embedding, without any token

    def end_ids(self, eos_ids: frozenset[int]) -> frozenset[int]:
        """Return the ids that end this run. `eos_ids`: of the model."""
        return self.stop_ids if self.ignore_eos else self.stop_ids | eos_ids


class SequenceFinished(NamedTuple):
    seq_id: int
    reason: FinishReason
    output_tokens: int  # made by this run
    cached_tokens: int  # tokens of the prompt found in the prefix cache
    embedding: bytes = b""  # float32, little-endian, of length 1; empty unless the sequence embeds


class SequenceCancelled(NamedTuple):
    seq_id: int
    output_tokens: int  # made by this run
    blocks_freed: int  # returned to the pool; a shared block counts for its last user


class SequenceRejected(NamedTuple):
    """The form of the output does not compile, or became too complex. The engine has released the sequence."""

    seq_id: int
    reason: str
    message: str


class SequencePrefilled(NamedTuple):
    """Number of known tokens of a sequence that a step computed, after a preemption for a second time."""

    seq_id: int
    tokens: int


class SequenceAdmitted(NamedTuple):
    """This step is the sequence's first."""

    seq_id: int
    cached_tokens: int


class LikeliestTokens(NamedTuple):
    """The likeliest tokens at one position of a sequence, the likeliest first."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]  # natural logarithms


@dataclass(slots=True)
class StepResult:
    """The results of one step. The four lists `seq_ids` to `logprobs` are parallel, with one entry per token made."""

    step: int  # from 1
    seq_ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # natural logarithms; 0 for sequences that request none
    finished: list[SequenceFinished] = field(default_factory=list)
    cancelled: list[SequenceCancelled] = field(default_factory=list)  # released before the step computed
    rejected: list[SequenceRejected] = field(default_factory=list)
    admitted: list[SequenceAdmitted] = field(default_factory=list)
    prefilled: list[SequencePrefilled] = field(default_factory=list)
    cache_changes: dict[bytes, bool] = field(default_factory=dict)  # by block hash: whether it is in the prefix cache
    preempted: Sequence[int] = ()  # sequences, once for each time that they lost their blocks in this step
    prefill_tokens: int = 0
    decode_seqs: int = 0
    duration_s: float = 0.0  # time that a simulated step should take; 0 for a real one
    # By place in the parallel lists, for tokens of sequences that request them, as many as `top_logprobs`.
    likeliest: dict[int, LikeliestTokens] = field(default_factory=dict)


@dataclass(slots=True)  # not frozen, as making a frozen one for each step takes three times as long
class Capacity:
    slots: int
    slots_free: int
    blocks: int
    blocks_free: int  # includes cached blocks, which are evicted on demand
    blocks_cached: int
    blocks_promised: int  # blocks that admitted and waiting sequences may still need
    block_size: int  # tokens
    waiting: int  # sequences
    running: int
    prefill_backlog_tokens: int  # of sequences that a new prompt of another class than batch shares the budget with


class Engine(Protocol):
    """Runs sequences, one step at a time for all of them. Called from one thread."""

    def add(self, spec: SequenceSpec) -> None:
        """Queue a sequence. Raises PromptTooLong or StartInvalid, and then does not keep it."""

    def cancel(self, seq_id: int) -> bool:
        """Release a sequence before the next step, whose result has the receipt. Return False for an unknown one."""

    def step(self) -> StepResult: ...

    def capacity(self) -> Capacity: ...

    @property
    def has_work(self) -> bool:
        """Whether a step would compute tokens or report a cancelled sequence."""
