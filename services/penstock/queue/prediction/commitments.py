"""TTFT commitments: tracks promised first-token times, and detects which a later, shorter prompt would break.

Workers prefill short prompts first, so a ticket that is admitted later may be in time at the cost of longer prompts
that were admitted before. Each commitment has the expected time of its first token, which each prompt that passes it
delays, and the time at which it is due, which is earlier than the TTFT limit by the safety margin.

A prompt delays only the prompts at its own worker. While it waits, the worker is not known, so each commitment that it
passes is at that worker with a probability of one to the number of workers: breaches are counted by their expectation,
and the expected time of each moves by the mean delay. Without the probability, a fleet would have as many commitments
that a short prompt cannot pass as it has workers, and would reject nearly all short prompts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

# Commitments that may be broken, per commitment made. Without it, one long prompt would block all shorter ones.
BREACH_BUDGET_PER_COMMITMENT = 0.003
MAX_BREACH_BUDGET = 2.0  # largest number of commitments that may be broken at once
# A prompt passes commitments that are expected later than this multiple of its own prefill time after its start,
# because workers reserve a share of their budget for the oldest prompt.
OVERTAKE_HORIZON_FACTOR = 3.0
ROUNDING_TOKENS = 1e-6  # tokens; more than the error of a quotient of times
MAX_COMMITMENTS = 512  # newest commitments kept per model, because each admission checks all of them


@dataclass(slots=True)
class Commitment:
    """The commitment to one prompt."""

    rank: int
    prompt_tokens: int
    expected_at: float  # s; expected time of the first token, without later arrivals
    due_at: float  # s


class BlockedRange(NamedTuple):
    """Prompt lengths that are blocked for a while."""

    duration: float  # s
    min_prompt_tokens: int  # shorter prompts break no commitment


@dataclass(slots=True)
class TtftCommitments:
    """Commitments of one model. Those whose first token is expected by now are removed."""

    breach_budget: float = 0.0  # commitments that may be broken
    _commitments: list[Commitment] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._commitments)

    def expected_breaches(
        self, rank: int, prompt_tokens: int, prefill_delay: float, starts_at: float, *, workers: int = 1
    ) -> float:
        """Return the expected number of commitments of at most `rank` that a prompt breaks.

        It starts at `starts_at` at one of `workers`, and delays the prompts that it passes there by `prefill_delay` s.
        """
        passed = self._overtaken(prompt_tokens, prefill_delay, starts_at)
        return sum([each.rank <= rank and each.expected_at + prefill_delay > each.due_at for each in passed]) / workers

    def blocked_range(
        self, rank: int, prompt_tokens: int, prefill_delay: float, starts_at: float, *, workers: int = 1
    ) -> BlockedRange | None:
        """Return the period and lengths for which a prompt and shorter ones are not allowed; None if it is allowed.

        The prefill delay is proportional to the length, and the start does not move faster than time.
        """
        late = [
            BlockedRange(
                each.expected_at - starts_at - OVERTAKE_HORIZON_FACTOR * prefill_delay,
                int(prompt_tokens * max(0.0, each.due_at - each.expected_at) / prefill_delay + ROUNDING_TOKENS) + 1,
            )
            for each in self._overtaken(prompt_tokens, prefill_delay, starts_at)
            if each.rank <= rank and each.expected_at + prefill_delay > each.due_at
        ]
        return self.combined_block(prompt_tokens, late, workers=workers)

    def combined_block(
        self, prompt_tokens: int, ranges: Iterable[BlockedRange], *, workers: int = 1
    ) -> BlockedRange | None:
        """Return the range in which a prompt is blocked if one commitment blocks each of `ranges`.

        The prompt may break as many commitments as the breach budget has. None if the budget covers all of them.
        """
        allowed = workers * self.breach_budget
        breaches = sorted(ranges, reverse=True)[: int(allowed) + 1]
        if len(breaches) <= allowed:
            return None
        shortest = max(each.min_prompt_tokens for each in breaches)
        return BlockedRange(breaches[-1].duration, min(prompt_tokens, shortest))

    def record_breaches(self, count: float) -> None:
        """Subtract the expected number of commitments that an admission breaks from the breach budget."""
        self.breach_budget = max(0.0, self.breach_budget - count)

    def delay_overtaken(
        self, prompt_tokens: int, prefill_delay: float, starts_at: float, now: float, *, workers: int = 1
    ) -> None:
        """Delay the commitments that an admitted prompt passes. Those that become late are removed."""
        for each in self._overtaken(prompt_tokens, prefill_delay, starts_at):
            each.expected_at += prefill_delay / workers
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
