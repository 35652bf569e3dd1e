"""How a batch forms: who may join a step, and how the prefill budget of a step is split. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

OVERTAKEN_OLDEST_FACTOR = 1 / 8  # of its share, which the oldest keeps while an urgent one prefills that is not as old


class BatchingPolicy(Protocol):
    def slots_taken(self, slots_taken: int, running: int) -> int:
        """Slots taken now, after `members` were and `running` sequences are left."""

    def max_joining(self, slots_taken: int, slots: int) -> int:
        """Most sequences that may join this step."""

    def split_prefill(self, remaining: Sequence[int], decodes: int, express: Sequence[bool] = ()) -> list[int]:
        """Tokens to prefill this step for each prefilling sequence, oldest first, beside `decodes` decodes.

        `urgent` says which go before the others; empty: none does.
        """


@dataclass(frozen=True, slots=True)
class ContinuousBatching:
    """Sequences join and leave at every step; one token budget holds decodes and prefill chunks.

    Shortest remaining prefill first keeps a short prompt's first token from waiting behind a long prompt, and urgent
    ones go before all others. The oldest has a guaranteed share, so it ends in bounded time; as each in turn becomes
    the oldest, none starves. While urgent ones prefill, the oldest of them has it, but for a little: otherwise each
    of a busy neighbour's prompts, as it becomes the oldest in its turn, holds them up by as much.
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
        budget = max(1, self.token_budget - decodes)  # never 0: decodes alone must not hold up prefills for ever
        oldest = next((place for place, is_urgent in enumerate(express) if is_urgent), 0)
        for place in (0, oldest) if oldest else (0,):
            share = self.oldest_share * (1 if place == oldest else OVERTAKEN_OLDEST_FACTOR)
            chunks[place] = min(remaining[place], max(1, int(budget * share)), budget)
            budget -= chunks[place]
        shortest = sorted(range(len(remaining)), key=remaining.__getitem__)
        for index in sorted(shortest, key=lambda each: not express[each]) if any(express) else shortest:
            extra = min(remaining[index] - chunks[index], budget)
            chunks[index] += extra
            budget -= extra
        return chunks


@dataclass(frozen=True, slots=True)
class StaticBatching:
    """Static batches, the baseline: whoever waits when the last batch has ended runs together until all have ended.

    Kinder than the usual static batch: tokens stream, nobody is padded, and a finished row costs no computing;
    what it keeps is its slot.
    """

    def slots_taken(self, slots_taken: int, running: int) -> int:
        return slots_taken if running else 0

    def max_joining(self, slots_taken: int, slots: int) -> int:
        return 0 if slots_taken else slots

    def split_prefill(self, remaining: Sequence[int], decodes: int, express: Sequence[bool] = ()) -> list[int]:
        return list(remaining)
