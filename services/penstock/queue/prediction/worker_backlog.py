"""The prompts that one worker prefills now, and the first-token time of each if another prompt joins. Pure arithmetic.

Prompts at one worker share the token budget of its steps (`prefill_sharing`). A new prompt therefore delays each prompt
there that has more tokens left, and waits for all that have fewer. Both follow from the tokens left of each prompt.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple

from penstock.queue.prediction.prefill_sharing import StepCosts, busy_prefill_time, completions, idle_prefill_time

MAX_UNKNOWN_PROMPTS = 16  # prompts that no placement has named, modelled separately at one worker
MAX_COMPUTED_PROMPTS = 8  # prompts of one worker that are taken to be computed and may not be
MAX_COMPUTED_AGE_S = 1.0  # s; a first token is known after less
ROUNDING_S = 1e-6  # s; more than the error of a difference of times
# Budgets. Which of two prompts is the shorter one is not certain if their lengths differ by less, because a report may
# be a step old. A joining prompt is then taken to delay the other.
TIE_BUDGETS = 1.0
PLACEHOLDER_PREFIX = "?"  # starts the name of an idle worker until a placement has its instance id


def commitment_rank(priority: int, *, is_express: bool) -> int:
    """Return the rank for commitments: only commitments of its own or a lower rank block a ticket.

    An express ticket is not blocked by commitments to tenants above their share.
    """
    return 2 * priority - is_express


@dataclass(slots=True, eq=False)
class PendingPrompt:
    """A prompt that is not computed yet."""

    left_tokens: float  # tokens
    is_express: bool = False
    rank: int = 0  # of the ticket; lower ranks are not delayed past their targets by higher ones
    reserved_tokens: int = 0  # prompt and output tokens that are promised to the ticket
    expected_at: float = inf  # s; time of the first token, as estimated when the newest prompt joined its worker
    promised_by: float = inf  # s; inf: no target
    usable_share: float = 1.0  # of the time until then that the expectation may take, as predictions have errors
    worker: str = ""
    is_placed: bool = False  # a placement has confirmed the worker
    joined_at: float = -inf  # s
    joined_tokens: float = 0.0  # tokens left then

    def due_at(self, now: float) -> float:
        """Return the latest time at which the first token may be expected. The margin shrinks with the time left."""
        return now + self.usable_share * (self.promised_by - now)

    @property
    def has_known_worker(self) -> bool:
        return not self.worker.startswith(PLACEHOLDER_PREFIX)


class PromptDelay(NamedTuple):
    """The first-token time of a prompt if another joins."""

    prompt: PendingPrompt
    expected_at: float  # s
    due_at: float  # s; the latest expectation that keeps the target
    undelayed_at: float  # s; the expectation without the joining prompt

    def is_breach(self, rank: int) -> bool:
        """Tell whether a joining prompt of this rank makes it late.

        A prompt that is late anyway is not counted. One that is expected within its safety margin is counted if it is
        delayed at all, as each further delay would make it more likely to be late.
        """
        prompt = self.prompt
        if self.expected_at <= self.due_at or prompt.rank > rank:
            return False
        return self.undelayed_at <= prompt.promised_by and self.expected_at - self.undelayed_at > ROUNDING_S

    def blocked_range(self, joining_tokens: int) -> tuple[float, int]:
        """Return the s for which a joining prompt of this length makes it late, and the fewest tokens that do.

        A joining prompt stops to overtake it when fewer tokens are left of it; a worker computes these no faster than
        if it had this prompt alone.
        """
        delay_per_token = (self.expected_at - self.undelayed_at) / joining_tokens
        slack = max(0.0, self.due_at - self.undelayed_at)
        duration = max(0.0, self.prompt.left_tokens - joining_tokens) * delay_per_token
        return duration, int(slack / delay_per_token) + 1


class JoinEstimate(NamedTuple):
    """The effect of a prompt that joins now, on itself and on others."""

    ttft: float  # s from now
    delays: Sequence[PromptDelay] = ()


@dataclass(slots=True)
class WorkerBacklog:
    """The pending prompts of one worker."""

    updated_at: float  # s; the time for which `left_tokens` is correct
    left_tokens: float = 0.0  # sum over the prompts
    prompts: list[PendingPrompt] = field(default_factory=list)  # oldest first
    scheduler: str = ""  # reports this worker
    # Prompts without tokens left, whose first tokens are not known yet, and the time of the computation; newest last.
    _computed: list[tuple[float, PendingPrompt]] = field(default_factory=list)

    def advance(self, now: float, steps: StepCosts) -> None:
        if now > self.updated_at:
            self.compute((now - self.updated_at) * steps.tokens_per_second)
            self.updated_at = now

    def compute(self, tokens: float) -> None:
        """Subtract computed tokens, in the order in which the worker computes prompts."""
        left = [each.left_tokens for each in self.prompts]
        if tokens >= self.left_tokens:
            left = [0.0] * len(left)
        else:
            completions(left, [each.is_express for each in self.prompts], tokens)
        for prompt, left_tokens in zip(self.prompts, left, strict=True):
            prompt.left_tokens = left_tokens
            if left_tokens <= 0 and prompt.promised_by < inf:
                self._computed.append((self.updated_at, prompt))
        del self._computed[:-MAX_COMPUTED_PROMPTS]
        self.prompts = [each for each in self.prompts if each.left_tokens > 0]
        self.left_tokens = sum([each.left_tokens for each in self.prompts])

    def append(self, prompt: PendingPrompt, now: float) -> None:
        prompt.joined_at, prompt.joined_tokens = now, prompt.left_tokens
        self.prompts.append(prompt)
        self.left_tokens += prompt.left_tokens

    def remove(self, prompt: PendingPrompt) -> None:
        """Remove a prompt that will not be computed."""
        if prompt in self.prompts:
            self.prompts.remove(prompt)
            self.left_tokens -= prompt.left_tokens
        self._computed = [each for each in self._computed if each[1] is not prompt]

    def complete(self, prompt: PendingPrompt, steps: StepCosts) -> None:
        """Remove a prompt whose first token is known. If it has tokens left, others were computed instead of it."""
        wrong = prompt.left_tokens - steps.budget_tokens if prompt in self.prompts else 0.0
        self.remove(prompt)
        if wrong <= 0:
            return
        wrong = self._restore(wrong)
        for each in sorted(self.prompts, key=attrgetter("left_tokens")):
            wrong -= self._add_tokens(each, wrong)

    def _restore(self, tokens: float) -> float:
        """Add tokens to the prompts that are taken to be computed, and return how many of them remain."""
        oldest = self.updated_at - MAX_COMPUTED_AGE_S
        while tokens > 0 and self._computed:
            computed_at, prompt = self._computed.pop()
            if computed_at >= oldest:
                tokens -= self._add_tokens(prompt, tokens)
                insort(self.prompts, prompt, key=attrgetter("joined_at"))
        return tokens

    def _add_tokens(self, prompt: PendingPrompt, tokens: float) -> float:
        added = max(0.0, min(tokens, prompt.joined_tokens - prompt.left_tokens))
        prompt.left_tokens += added
        self.left_tokens += added
        return added

    def correct(self, reported_tokens: float, mean_prompt_tokens: float, now: float, steps: StepCosts) -> None:
        """Apply the backlog that the worker had at the end of its last step, without prompts that are not placed yet.

        Up to one step's budget may have been computed since. A larger excess belongs to prompts that are taken to be
        computed and are not, or to prompts that no placement has named.
        """
        self.advance(now, steps)
        known = sum([each.left_tokens for each in self.prompts if each.is_placed])
        if known > reported_tokens:
            self.compute(known - reported_tokens)
        elif (excess := reported_tokens - known - steps.budget_tokens) > 0 and (unknown := self._restore(excess)) > 0:
            count = min(MAX_UNKNOWN_PROMPTS, max(1, round(unknown / mean_prompt_tokens))) if mean_prompt_tokens else 1
            self.prompts[:0] = [PendingPrompt(unknown / count, is_placed=True) for _ in range(count)]
            self.left_tokens += unknown

    def estimate_join(self, prompt_tokens: float, *, is_express: bool, now: float, steps: StepCosts) -> JoinEstimate:
        if not self.prompts:
            return JoinEstimate(idle_prefill_time(steps, prompt_tokens))
        left, express = [each.left_tokens for each in self.prompts], [each.is_express for each in self.prompts]
        alone = completions(left[:], express)
        express.append(is_express)
        own = completions([*left, prompt_tokens], express)[-1]
        tie = min(TIE_BUDGETS * steps.budget_tokens, prompt_tokens / 2)
        others = completions([*left, prompt_tokens - tie], express)
        total, delays = self.left_tokens + prompt_tokens, []
        for prompt, before, after in zip(self.prompts, alone, others, strict=False):
            undelayed_at = expected_at = now + busy_prefill_time(steps, before, self.left_tokens)
            if after > before:
                expected_at = now + busy_prefill_time(steps, after + tie, total)
            delays.append(PromptDelay(prompt, expected_at, prompt.due_at(now), undelayed_at))
        return JoinEstimate(busy_prefill_time(steps, own, total), delays)
