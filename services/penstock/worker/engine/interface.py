"""What an engine is told, what it answers, and the protocol that every engine satisfies.

Plain values without tensors: they cross the pipe between the worker's two processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-sequence or stop id, which is the last token emitted
    LENGTH = "length"


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
    logprobs: bool = False  # of the model's own distribution, before penalties, form and truncation


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Nothing but these and the ids that end a run may come."""

    token_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class AllowedChoices:
    """The answer is one of these, token by token, and then an id that ends the run."""

    choices: tuple[tuple[int, ...], ...]

    @property
    def token_ids(self) -> frozenset[int]:
        return frozenset(token for choice in self.choices for token in choice)


OutputConstraint = AllowedTokens | AllowedChoices


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSpec:
    """One run. A resumed one is told apart by nothing but `emitted`: its text goes on as if it had never stopped."""

    seq_id: int
    token_ids: Sequence[int]  # prompt, then what earlier runs emitted
    emitted: int = 0  # how many of the last `token_ids`; the next token has this index
    max_output_tokens: int  # still to generate, at least 1
    stop_ids: frozenset[int] = frozenset()  # beside the model's end-of-sequence ids
    ignore_eos: bool = False
    sampling: SamplingParams = SamplingParams()
    constraint: OutputConstraint | None = (
        None  # what the answer is held to; a simulated engine makes up its tokens all the same
    )
    seed: int = 0
    # Runs of equal salt share the KV of equal beginnings, those still being computed too: a tenant's own, or one made
    # up for the completions of a single request. Empty: shares nothing.
    cache_salt: bytes = b""
    is_express: bool = False  # prefilled before those that are not


class SequenceFinished(NamedTuple):
    seq_id: int
    reason: FinishReason
    output_tokens: int  # made by this run
    cached_tokens: int  # of the prompt, found in the prefix cache


class SequenceCancelled(NamedTuple):
    seq_id: int
    output_tokens: int  # made by this run
    blocks_freed: int  # back in the pool; a shared block counts for its last user


class SequencePrefilled(NamedTuple):
    """A step computed so many known tokens of a sequence, after a preemption for a second time."""

    seq_id: int
    tokens: int


class SequenceAdmitted(NamedTuple):
    """A sequence's first step is this one."""

    seq_id: int
    cached_tokens: int


@dataclass(slots=True)
class StepResult:
    """What one step did. The first four lists run parallel, one entry per token made."""

    step: int  # from 1
    seq_ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # natural; 0 for sequences that did not ask
    finished: list[SequenceFinished] = field(default_factory=list)
    cancelled: list[SequenceCancelled] = field(
        default_factory=list
    )  # let go before this step: it spent nothing on them
    admitted: list[SequenceAdmitted] = field(default_factory=list)
    prefilled: list[SequencePrefilled] = field(default_factory=list)
    cache_changes: dict[bytes, bool] = field(
        default_factory=dict
    )  # names of KV blocks: in the prefix cache from now on
    preempted: int = 0
    prefill_tokens: int = 0
    decode_seqs: int = 0
    duration_s: float = 0.0  # how long a simulated step should take; 0 where a real one has taken its time


@dataclass(slots=True)  # not frozen: one is made for each step, and that takes three times as long
class Capacity:
    slots: int
    slots_free: int
    blocks: int
    blocks_free: int  # cached ones among them: they are given up on demand
    blocks_cached: int
    blocks_promised: int  # free ones that admitted and waiting sequences may still grow into
    block_size: int  # tokens
    waiting: int  # sequences
    running: int
    prefill_backlog_tokens: int


class Engine(Protocol):
    """Runs sequences, one step for all of them at a time. Called from one thread."""

    def add(self, spec: SequenceSpec) -> None:
        """Queue a sequence. Raises PromptTooLong or StartInvalid, and then knows nothing of it."""

    def cancel(self, seq_id: int) -> bool:
        """Let a sequence go before the next step; its receipt is in that step's result. False: not here (any more)."""

    def step(self) -> StepResult: ...

    def capacity(self) -> Capacity: ...

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything, handing out the receipt of a cancel included."""
