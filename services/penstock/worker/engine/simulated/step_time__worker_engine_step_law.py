"""How long an engine's step takes, as a law over the work that is in it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class PositionSpan(Protocol):
    """A run of one sequence's positions that a step computes; `Slice` is one."""

    start: int
    count: int


class StepWork(NamedTuple):
    """What a step's time follows from."""

    prefill_tokens: int
    decode_seqs: int
    context_tokens: int  # positions that decodes read
    prefill_context_tokens: int  # positions that prefilled tokens read, each token counting its own and all before it


def work_of(decodes: Iterable[PositionSpan], prefills: Iterable[PositionSpan]) -> StepWork:
    ends = [part.start + part.count for part in decodes]
    tokens = reads = 0
    for part in prefills:
        tokens += part.count
        reads += prefill_reads(part.start, part.count)
    return StepWork(tokens, len(ends), sum(ends), reads)


def prefill_reads(start: int, count: int) -> int:
    """Positions read by `count` tokens from `start` on."""
    return count * start + count * (count + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """Time of a step, linear in its work. The defaults are one mid-size GPU's."""

    base_s: float = 0.006
    per_prefill_token_s: float = 0.0001
    per_decode_seq_s: float = 0.00005
    per_context_token_s: float = 0.0  # for each position that a decode reads
    per_prefill_context_token_s: float = 0.0  # for each that a prefilled token reads

    def duration_s(self, work: StepWork) -> float:
        return (
            self.base_s
            + self.per_prefill_token_s * work.prefill_tokens
            + self.per_decode_seq_s * work.decode_seqs
            + self.per_context_token_s * work.context_tokens
            + self.per_prefill_context_token_s * work.prefill_context_tokens
        )
