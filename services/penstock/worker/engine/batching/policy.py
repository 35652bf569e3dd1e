"""Batching policies: the number of sequences that join a step, and the split of its prefill budget. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

OVERTAKEN_OLDEST_FACTOR = 1 / 8  # of its share, which the oldest sequence keeps while a newer express one prefills


class BatchingPolicy(Protocol):
    def slots_taken(self, slots_taken: int, running: int) -> int:
        """Return the slots taken when `running` sequences are left; `slots_taken` is the number before."""

    def max_joining(self, slots_taken: int, slots: int) -> int:
        """Return the maximum number of sequences that may join this step."""

    def split_prefill(self, remaining: Sequence[int], decodes: int, express: Sequence[bool] = ()) -> list[int]:
        """Return the tokens to prefill in this step for each prefilling sequence, oldest first.

        decodes: number of decodes in the step. express: whether each sequence goes before the others; empty: none does.
        """


@dataclass(frozen=True, slots=True)
class ContinuousBatching:
    """Sequences join and leave at every step; one token budget holds decodes and prefill chunks.

    The shortest remaining prefill goes first, so that a short prompt does not wait behind a long one; express sequences
    go before all others. The oldest sequence has a guaranteed share of the budget, so that none starves. While express
    sequences prefill, the oldest of them has most of that share; otherwise each prompt of a busy tenant would delay
    them when it becomes the oldest.
    """

    token_budget: int = 512  # tokens per step
    oldest_share: float = 0.25  # of the budget that decodes leave

    def __post_init__(self) -> None:
        if self.token_budget < 1 or not 0.0 < self.oldest_share <= 1.0:
            raise ValueError(f"token_budget must be above 0 and oldest_share in (0, 1]: {self}")

    def slots_taken(self, slots_taken: int, running: int) -> int:
        return running

    def max_joining(self, slots_taken: int, slots: int) -> int:
        return slots - slots_taken

    def split_prefill(self, remaining: Sequence[int], decodes: int, express: Sequence[bool] = ()) -> list[int]:
        chunks = [0] * len(remaining)
        if not remaining:
            return chunks
        budget = max(1, self.token_budget - decodes)  # never 0, so that decodes cannot starve prefills
        oldest = next((index for index, is_express in enumerate(express) if is_express), 0)
        for index in (0, oldest) if oldest else (0,):
            share = self.oldest_share * (1 if index == oldest else OVERTAKEN_OLDEST_FACTOR)
            chunks[index] = min(remaining[index], max(1, int(budget * share)), budget)
            budget -= chunks[index]
        shortest = sorted(range(len(remaining)), key=remaining.__getitem__)
        for index in sorted(shortest, key=lambda each: not express[each]) if any(express) else shortest:
            extra = min(remaining[index] - chunks[index], budget)
            chunks[index] += extra
            budget -= extra
        return chunks


@dataclass(frozen=True, slots=True)
class StaticBatching:
    """Static batches, a baseline: the sequences that wait when a batch ends run together until all have ended.

    Unlike in a usual static batch, tokens are streamed, rows are not padded, and a finished sequence keeps its slot but
    is not computed.
    """

    def slots_taken(self, slots_taken: int, running: int) -> int:
        return slots_taken if running else 0

    def max_joining(self, slots_taken: int, slots: int) -> int:
        return 0 if slots_taken else slots

    def split_prefill(self, remaining: Sequence[int], decodes: int, express: Sequence[bool] = ()) -> list[int]:
        return list(remaining)
