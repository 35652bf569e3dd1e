"""First tokens that are owed to prompts let in, and which of them a shorter one that comes after would make late.

Workers do short prompts first, so whoever is let in later may be in time at the cost of longer prompts that were
promised theirs before. Each is kept with the time at which it would come if nobody else came, which all that pass it
move, and the time by which it is due: short of what was promised by as much as predictions may be off.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# Commitments that may be broken, for each that is made. Without it one long prompt would block all shorter ones.
BREACH_BUDGET_PER_COMMITMENT = 0.005
MAX_BREACH_BUDGET = 2.0  # promises at once, however many were kept before
OVERTAKE_HORIZON_FACTOR = (
    3.0  # times what a prompt takes, that is left to do of those it passes: the oldest has a share for itself
)
MAX_COMMITMENTS = 512  # of one model; of more, the newest, as each that comes is held against all


@dataclass(slots=True)
class Commitment:
    """Of one prompt."""

    rank: int
    prompt_tokens: int  # tokens
    expected_at: float  # s; when it comes, but for those who are yet to come
    due_at: float  # s


class BlockedRange(NamedTuple):
    """Prompts that may not come in for a while."""

    duration: float  # s
    min_prompt_tokens: int  # tokens; shorter ones take too little to matter


@dataclass(slots=True)
class TtftCommitments:
    """Of one model. What is expected to be out by now is forgotten."""

    breach_budget: float = 0.0  # promises that may be broken
    _commitments: list[Commitment] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._commitments)

    def allows(self, rank: int, prompt_tokens: int, prefill_delay: float, starts_at: float) -> bool:
        """Tell whether a prompt that takes `takes` s and has a slot when it `begins` may come in.

        Higher ranks have to bear it.
        """
        passed = self._overtaken(prompt_tokens, prefill_delay, starts_at)
        return self.breach_budget >= sum(
            each.rank <= rank and each.expected_at + prefill_delay > each.due_at for each in passed
        )

    def blocked_range(
        self, rank: int, prompt_tokens: int, prefill_delay: float, starts_at: float
    ) -> BlockedRange | None:
        """Return for how long it is not allowed, nor are shorter ones; None: it is.

        What a prompt takes goes by its length, and when it begins moves no faster than time.
        """
        late = [
            BlockedRange(
                each.expected_at - starts_at - OVERTAKE_HORIZON_FACTOR * prefill_delay,
                int(prompt_tokens * max(0.0, each.due_at - each.expected_at) / prefill_delay) + 1,
            )
            for each in self._overtaken(prompt_tokens, prefill_delay, starts_at)
            if each.rank <= rank and each.expected_at + prefill_delay > each.due_at
        ]
        return self.combined_block(prompt_tokens, late)

    def combined_block(self, prompt_tokens: int, ranges: Iterable[BlockedRange]) -> BlockedRange | None:
        """Return the range that a prompt is in if each of `ranges` is blocked by one commitment.

        The breach budget lets it pass as many; None: it may pass all.
        """
        enough = sorted(ranges, reverse=True)[: int(self.breach_budget) + 1]
        if len(enough) <= self.breach_budget:
            return None
        return BlockedRange(enough[-1].duration, min(prompt_tokens, max(each.min_prompt_tokens for each in enough)))

    def record_breaches(self, count: int) -> None:
        """Subtract commitments that an admission breaks from the breach budget."""
        self.breach_budget = max(0.0, self.breach_budget - count)

    def delay_overtaken(self, prompt_tokens: int, prefill_delay: float, starts_at: float, now: float) -> None:
        """Delay those that it passes; those that this makes late hold up nobody any more."""
        for each in self._overtaken(prompt_tokens, prefill_delay, starts_at):
            each.expected_at += prefill_delay
        late = sum(each.expected_at > each.due_at for each in self._commitments)
        self.record_breaches(late)
        self._commitments = [each for each in self._commitments if now < each.expected_at <= each.due_at][
            -MAX_COMMITMENTS:
        ]

    def commit(self, commitment: Commitment) -> None:
        self.breach_budget = min(MAX_BREACH_BUDGET, self.breach_budget + BREACH_BUDGET_PER_COMMITMENT)
        self._commitments.append(commitment)
        if len(self._commitments) >= 2 * MAX_COMMITMENTS:
            del self._commitments[:MAX_COMMITMENTS]

    def _overtaken(self, prompt_tokens: int, prefill_delay: float, starts_at: float) -> Iterator[Commitment]:
        horizon = starts_at + OVERTAKE_HORIZON_FACTOR * prefill_delay
        return (each for each in self._commitments if each.prompt_tokens > prompt_tokens and each.expected_at > horizon)
