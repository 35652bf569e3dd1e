"""Batching policies: the number of sequences that join a step, and the split of its prefill budget. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.mesh.prefill_rank import BATCH_RANK, DEFAULT_RANK

OVERTAKEN_OLDEST_FACTOR = 1 / 8  # of its share, which the oldest sequence keeps while a newer one has a lower rank
OVERTAKEN_BATCH_FACTOR = 1 / 64  # the same of a batch sequence, which still ends: it gets some tokens in each step
MAX_YIELDING_STEPS = 1_024  # after the latest sequence of another class than batch was added


@dataclass(slots=True)
class Yielding:
    """Whether a batch yields: sequences of other classes have been added recently."""

    _until_step: int = 0

    def on_added(self, prefill_rank: int, step: int) -> None:
        if prefill_rank < BATCH_RANK:
            self._until_step = step + MAX_YIELDING_STEPS

    def is_due(self, step: int) -> bool:
        return step <= self._until_step


class BatchingPolicy(Protocol):
    def slots_taken(self, slots_taken: int, running: int) -> int:
        """Return the slots taken when `running` sequences are left; `slots_taken` is the number before."""

    def max_joining(self, slots_taken: int, slots: int) -> int:
        """Return the maximum number of sequences that may join this step."""

    def split_prefill(
        self, remaining: Sequence[int], decodes: int, ranks: Sequence[int] = (), *, yields: bool = False
    ) -> list[int]:
        """Return the tokens to prefill in this step for each prefilling sequence, oldest first.

        decodes: number of decodes in the step. ranks: sequences of lower ranks go first; empty: all have one rank.
        yields: whether prompts of other classes than batch arrive, which wait for the end of each step.
        """


@dataclass(frozen=True, slots=True)
class ContinuousBatching:
    """Sequences join and leave at every step; one token budget holds decodes and prefill chunks.

    Sequences of the lowest rank go first, and among them the shortest remaining prefill, so that a short prompt does
    not wait behind a long one. The oldest sequence has a guaranteed share of the budget, so that none starves. While
    sequences of a lower rank prefill, the oldest of the lowest rank has most of that share; otherwise each prompt of a
    busy tenant would delay them when it becomes the oldest.

    Batch sequences get nothing of the budget beyond these shares while others prefill, and a part of it while others
    may arrive: a step is then as short as their first tokens need it, and the batch loses little, because its decodes
    share each step.
    """

    token_budget: int = 512  # tokens per step
    oldest_share: float = 0.25  # of the budget that decodes leave
    yielding_share: float = 0.125  # of the budget, for batch sequences while others may arrive

    def __post_init__(self) -> None:
        if self.token_budget < 1 or not (0.0 < self.oldest_share <= 1.0 and 0.0 < self.yielding_share <= 1.0):
            raise ValueError(f"token_budget must be above 0, oldest_share and yielding_share in (0, 1]: {self}")

    def slots_taken(self, slots_taken: int, running: int) -> int:
        return running

    def max_joining(self, slots_taken: int, slots: int) -> int:
        return slots - slots_taken

    def split_prefill(
        self, remaining: Sequence[int], decodes: int, ranks: Sequence[int] = (), *, yields: bool = False
    ) -> list[int]:
        chunks = [0] * len(remaining)
        if not remaining:
            return chunks
        budget = max(1, self.token_budget - decodes)  # never 0, so that decodes cannot starve prefills
        first = min(ranks, default=DEFAULT_RANK)
        oldest = ranks.index(first) if ranks else 0
        if yields and first == BATCH_RANK:
            budget = max(1, min(budget, int(self.token_budget * self.yielding_share)))
        for index in (0, oldest) if oldest else (0,):
            share = self.oldest_share
            if index != oldest:
                share *= OVERTAKEN_BATCH_FACTOR if ranks[0] == BATCH_RANK else OVERTAKEN_OLDEST_FACTOR
            chunks[index] = min(remaining[index], max(1, int(budget * share)), budget)
            budget -= chunks[index]
        shortest = sorted(range(len(remaining)), key=remaining.__getitem__)
        if first < max(ranks, default=first):
            shortest = sorted((each for each in shortest if ranks[each] < BATCH_RANK), key=ranks.__getitem__)
        for index in shortest:
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

    def split_prefill(
        self, remaining: Sequence[int], decodes: int, ranks: Sequence[int] = (), *, yields: bool = False
    ) -> list[int]:
        return list(remaining)
