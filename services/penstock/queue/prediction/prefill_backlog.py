"""The prompts that each worker of a model prefills now, and when the first token of each is expected. Pure arithmetic.

Prompts at one worker share the token budget of its steps (`prefill_sharing`). A new prompt therefore delays each prompt
there that has more tokens left, and waits for all that have fewer. Both follow from the tokens left of each prompt.
They are tracked by worker, from placements, the time that passes and the backlogs that schedulers report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from penstock.queue.prediction.prefill_sharing import StepCosts, busy_prefill_time, completions, idle_prefill_time

MAX_UNKNOWN_PROMPTS = 16  # prompts of other shards that are modelled separately at one worker
MAX_AVAILABLE_AGE_S = 2.0  # twice the longest time between reports of a scheduler
PLACEHOLDER_PREFIX = "?"  # starts the name of an idle worker until a placement has its instance id


@dataclass(slots=True, eq=False)
class PendingPrompt:
    """A prompt that is not computed yet."""

    left_tokens: float  # tokens
    is_express: bool = False
    rank: int = 0  # of the ticket; lower ranks are not delayed past their targets by higher ones
    expected_at: float = inf  # s; time of the first token if no other prompt joins
    promised_by: float = inf  # s; inf: no target
    usable_share: float = 1.0  # of the time until then that the expectation may take, as predictions have errors
    worker: str = ""
    is_placed: bool = False  # a placement has confirmed the worker

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

    def is_breach(self, rank: int) -> bool:
        """Tell whether a joining prompt of this rank makes it late. A prompt that is late anyway is not counted."""
        prompt = self.prompt
        return prompt.rank <= rank and self.expected_at > self.due_at >= prompt.expected_at

    def blocked_range(self, joining_tokens: int) -> tuple[float, int]:
        """Return the s for which a joining prompt of this length makes it late, and the fewest tokens that do.

        A joining prompt stops to overtake it when fewer tokens are left of it; a worker computes these no faster than
        if it had this prompt alone.
        """
        delay_per_token = (self.expected_at - self.prompt.expected_at) / joining_tokens
        slack = self.due_at - self.prompt.expected_at
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

    def advance(self, now: float, steps: StepCosts) -> None:
        if now > self.updated_at:
            self.compute((now - self.updated_at) * steps.tokens_per_second)
            self.updated_at = now

    def compute(self, tokens: float) -> None:
        """Subtract computed tokens, in the order in which the worker computes prompts."""
        if tokens >= self.left_tokens:
            self.left_tokens, self.prompts = 0.0, []
            return
        left = [each.left_tokens for each in self.prompts]
        completions(left, [each.is_express for each in self.prompts], tokens)
        for prompt, left_tokens in zip(self.prompts, left, strict=True):
            prompt.left_tokens = left_tokens
        self.prompts = [each for each in self.prompts if each.left_tokens > 0]
        self.left_tokens = sum([each.left_tokens for each in self.prompts])

    def correct(self, reported_tokens: float, mean_prompt_tokens: float, now: float, steps: StepCosts) -> None:
        """Apply the backlog that the worker had at the end of its last step, without prompts that are not placed yet.

        Up to one step's budget may have been computed since. A larger excess belongs to prompts of other shards.
        """
        self.advance(now, steps)
        known = sum([each.left_tokens for each in self.prompts if each.is_placed])
        if known > reported_tokens:
            self.compute(known - reported_tokens)
        elif (unknown := reported_tokens - known - steps.budget_tokens) > 0:
            count = min(MAX_UNKNOWN_PROMPTS, max(1, round(unknown / mean_prompt_tokens))) if mean_prompt_tokens else 1
            self.prompts[:0] = [PendingPrompt(unknown / count, is_placed=True) for _ in range(count)]
            self.left_tokens += unknown

    def estimate_join(self, prompt_tokens: float, *, is_express: bool, now: float, steps: StepCosts) -> JoinEstimate:
        if not self.prompts:
            return JoinEstimate(idle_prefill_time(steps, prompt_tokens))
        left = [*(each.left_tokens for each in self.prompts), prompt_tokens]
        *others, own = completions(left, [*(each.is_express for each in self.prompts), is_express])
        total = self.left_tokens + prompt_tokens
        delays = [
            PromptDelay(each, now + busy_prefill_time(steps, completion, total), each.due_at(now))
            for each, completion in zip(self.prompts, others, strict=True)
        ]
        return JoinEstimate(busy_prefill_time(steps, own, total), delays)


@dataclass(slots=True)
class AvailableLeases:
    """Leases that workers of one scheduler accept, less the tickets since the report. Unnamed workers accept many."""

    received_at: float  # s
    by_worker: dict[str, int]

    def is_current(self, now: float) -> bool:
        return now - self.received_at <= MAX_AVAILABLE_AGE_S

    @property
    def full_workers(self) -> list[str]:
        return [worker for worker, leases in self.by_worker.items() if leases <= 0]


@dataclass(slots=True)
class PrefillBacklog:
    """The pending prompts of all workers of one model. A worker without an entry has none."""

    _workers: dict[str, WorkerBacklog] = field(default_factory=dict)  # by instance id
    _available: dict[str, AvailableLeases] = field(default_factory=dict)  # by scheduler

    def __len__(self) -> int:
        return len(self._workers)

    def estimate_join(
        self, prompt_tokens: int, *, is_express: bool, now: float, workers: int, steps: StepCosts
    ) -> JoinEstimate:
        """Return the effect of a prompt that is placed now."""
        worker = self._next_worker(now, workers, steps)
        if worker is None:
            return JoinEstimate(idle_prefill_time(steps, prompt_tokens))
        backlog = self._workers[worker]
        backlog.advance(now, steps)
        return backlog.estimate_join(prompt_tokens, is_express=is_express, now=now, steps=steps)

    def on_offered(self, prompt: PendingPrompt, now: float, workers: int, steps: StepCosts) -> None:
        """Add a prompt to the next worker's backlog until its placement is known."""
        worker = self._next_worker(now, workers, steps) or f"{PLACEHOLDER_PREFIX}{id(prompt)}"
        self._add(worker, prompt, now, steps)
        self._add_available(worker, -1)

    def on_placed(self, prompt: PendingPrompt, worker: str, scheduler: str, now: float, steps: StepCosts) -> None:
        prompt.is_placed = True
        if prompt.worker != worker:
            self._add_available(prompt.worker, 1)
            self.remove(prompt, now, steps)
            self._add(worker, prompt, now, steps)
            self._add_available(worker, -1)
        if backlog := self._workers.get(worker):
            backlog.scheduler = scheduler

    def on_report(
        self, scheduler: str, backlogs: Mapping[str, int], mean_prompt_tokens: float, now: float, steps: StepCosts
    ) -> None:
        """Correct the backlogs of a scheduler's workers; a worker that is not in the report has none."""
        idle = {worker: 0 for worker, backlog in self._workers.items() if backlog.scheduler == scheduler}
        for worker, tokens in (idle | dict(backlogs)).items():
            backlog = self._workers.setdefault(worker, WorkerBacklog(now, scheduler=scheduler))
            backlog.correct(tokens, mean_prompt_tokens, now, steps)
            if not backlog.prompts:
                del self._workers[worker]

    def on_available_leases(self, scheduler: str, available: Mapping[str, int], now: float) -> None:
        """Apply the number of leases that workers of a scheduler accept."""
        current = {key: each for key, each in self._available.items() if each.is_current(now)}
        self._available = current | {scheduler: AvailableLeases(now, dict(available))}

    def remove(self, prompt: PendingPrompt, now: float, steps: StepCosts) -> None:
        """Remove a prompt that is complete at `now`, or will not be computed."""
        backlog = self._workers.get(prompt.worker)
        if backlog and prompt in backlog.prompts:
            backlog.advance(now, steps)
        if backlog and prompt in backlog.prompts:
            backlog.prompts.remove(prompt)
            backlog.left_tokens -= prompt.left_tokens
            if not backlog.prompts:
                del self._workers[prompt.worker]

    def _add_available(self, worker: str, leases: int) -> None:
        for available in self._available.values():
            if worker in available.by_worker:
                available.by_worker[worker] += leases

    def _next_worker(self, now: float, workers: int, steps: StepCosts) -> str | None:
        """Return the worker with the smallest backlog among those that accept leases; None if one of these is idle.

        If no worker accepts a lease, the next released slot may be at any of them.
        """
        full = {key for each in self._available.values() if each.is_current(now) for key in each.full_workers}
        if len(full) >= workers:
            full = set()
        best, fewest, accepting = None, inf, 0
        for key, backlog in list(self._workers.items()):
            left = backlog.left_tokens - (now - backlog.updated_at) * steps.tokens_per_second
            if left <= 0:
                del self._workers[key]
            elif key not in full:
                accepting += 1
                if left < fewest:
                    best, fewest = key, left
        return best if accepting >= workers - len(full) else None

    def _add(self, worker: str, prompt: PendingPrompt, now: float, steps: StepCosts) -> None:
        backlog = self._workers.setdefault(worker, WorkerBacklog(now))
        backlog.advance(now, steps)
        joined = backlog.estimate_join(prompt.left_tokens, is_express=prompt.is_express, now=now, steps=steps)
        for each in joined.delays:
            each.prompt.expected_at = each.expected_at
        prompt.expected_at = now + joined.ttft
        backlog.prompts.append(prompt)
        backlog.left_tokens += prompt.left_tokens
        prompt.worker = worker
