"""The prompts that each worker of a model prefills now, and when the first token of each is expected. Pure arithmetic.

Prompts at one worker share the token budget of its steps (`prefill_sharing`). A new prompt therefore delays each prompt
there that has more tokens left, and waits for all that have fewer. Both follow from the tokens left of each prompt.
They are tracked by worker, from placements, the time that passes and the backlogs that schedulers report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from penstock.queue.prediction.pool_stats import WorkerCapacity
from penstock.queue.prediction.prefill_sharing import StepCosts, busy_prefill_time, completions, idle_prefill_time

MAX_UNKNOWN_PROMPTS = 16  # prompts of other shards that are modelled separately at one worker
MAX_REMOTE_PROMPTS = 64  # prompts at one worker, beyond which prompts of other shards are not modelled separately
MAX_CAPACITY_AGE_S = 2.0  # twice the longest time between reports of a scheduler
ROUNDING_S = 1e-6  # s; more than the error of a difference of times
# Budgets. Which of two prompts is the shorter one is not certain if their lengths differ by less, because a report may be
# a step old. A joining prompt is then taken to delay the other.
TIE_BUDGETS = 1.0
PLACEHOLDER_PREFIX = "?"  # starts the name of an idle worker until a placement has its instance id


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

    def due_at(self, now: float) -> float:
        """Return the latest time at which the first token may be expected. The margin shrinks with the time left."""
        return now + self.usable_share * (self.promised_by - now)

    @property
    def has_known_worker(self) -> bool:
        return not self.worker.startswith(PLACEHOLDER_PREFIX)


class RemotePrompt(NamedTuple):
    """A prompt of another shard, as its scheduler reports it."""

    worker: str
    tokens: int  # to prefill
    rank: int  # as that of a commitment
    due_in: float  # s; inf: no first token was promised

    @property
    def is_express(self) -> bool:
        return bool(self.rank & 1)


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
        left, express = [each.left_tokens for each in self.prompts], [each.is_express for each in self.prompts]
        alone = completions(left[:], express)
        express.append(is_express)
        own = completions([*left, prompt_tokens], express)[-1]
        tie = min(TIE_BUDGETS * steps.budget_tokens, prompt_tokens / 2)
        others = completions([*left, prompt_tokens - tie], express)
        total = self.left_tokens + prompt_tokens

        def time_of(completion: float) -> float:
            return now + busy_prefill_time(steps, completion, total)

        delays = [
            PromptDelay(prompt, time_of(after + tie if after > before else before), prompt.due_at(now), time_of(before))
            for prompt, before, after in zip(self.prompts, alone, others, strict=False)
        ]
        return JoinEstimate(busy_prefill_time(steps, own, total), delays)


@dataclass(slots=True)
class ReportedCapacities:
    """Capacities of workers of one scheduler, less the tickets since the report. Unnamed workers accept any ticket."""

    received_at: float  # s
    by_worker: dict[str, WorkerCapacity]

    def is_current(self, now: float) -> bool:
        return now - self.received_at <= MAX_CAPACITY_AGE_S

    def refusing_workers(self, tokens: int) -> list[str]:
        """Return the workers that do not accept a ticket of `tokens` prompt and output tokens."""
        return [worker for worker, capacity in self.by_worker.items() if not capacity.accepts(tokens)]


@dataclass(slots=True)
class PrefillBacklog:
    """The pending prompts of all workers of one model. A worker without an entry has none."""

    _workers: dict[str, WorkerBacklog] = field(default_factory=dict)  # by instance id
    _capacities: dict[str, ReportedCapacities] = field(default_factory=dict)  # by scheduler

    def __len__(self) -> int:
        return len(self._workers)

    def estimate_join(
        self, prompt_tokens: int, reserved_tokens: int, *, is_express: bool, now: float, workers: int, steps: StepCosts
    ) -> JoinEstimate:
        """Return the effect of a prompt that is placed now, for whose ticket `reserved_tokens` are reserved."""
        worker = self._next_worker(reserved_tokens, now, workers, steps)
        if worker is None:
            return JoinEstimate(idle_prefill_time(steps, prompt_tokens))
        backlog = self._workers[worker]
        backlog.advance(now, steps)
        return backlog.estimate_join(prompt_tokens, is_express=is_express, now=now, steps=steps)

    def on_offered(self, prompt: PendingPrompt, now: float, workers: int, steps: StepCosts) -> None:
        """Add a prompt to the next worker's backlog until its placement is known."""
        worker = self._next_worker(prompt.reserved_tokens, now, workers, steps) or f"{PLACEHOLDER_PREFIX}{id(prompt)}"
        self._add(worker, prompt, now, steps)
        self._add_capacity(worker, -1, -prompt.reserved_tokens)

    def on_placed(self, prompt: PendingPrompt, worker: str, scheduler: str, now: float, steps: StepCosts) -> None:
        prompt.is_placed = True
        if prompt.worker != worker:
            self._add_capacity(prompt.worker, 1, prompt.reserved_tokens)
            self.remove(prompt, now, steps)
            self._add(worker, prompt, now, steps)
            self._add_capacity(worker, -1, -prompt.reserved_tokens)
        if backlog := self._workers.get(worker):
            backlog.scheduler = scheduler

    def on_placed_elsewhere(
        self, placed: RemotePrompt, scheduler: str, usable_share: float, now: float, steps: StepCosts
    ) -> None:
        """Add a prompt that another shard has placed."""
        backlog = self._workers.get(placed.worker)
        if backlog and len(backlog.prompts) >= MAX_REMOTE_PROMPTS:
            return
        prompt = PendingPrompt(placed.tokens, placed.is_express, placed.rank, is_placed=True)
        prompt.promised_by, prompt.usable_share = now + placed.due_in, usable_share
        self._add(placed.worker, prompt, now, steps)
        self._workers[placed.worker].scheduler = scheduler

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

    def on_capacities(self, scheduler: str, capacities: Mapping[str, WorkerCapacity], now: float) -> None:
        """Apply the capacities of a scheduler's workers."""
        current = {key: each for key, each in self._capacities.items() if each.is_current(now)}
        self._capacities = current | {scheduler: ReportedCapacities(now, dict(capacities))}

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

    def _add_capacity(self, worker: str, leases: int, tokens: int) -> None:
        for reported in self._capacities.values():
            if capacity := reported.by_worker.get(worker):
                reported.by_worker[worker] = capacity.plus(leases, tokens)

    def _next_worker(self, reserved_tokens: int, now: float, workers: int, steps: StepCosts) -> str | None:
        """Return the worker with the smallest backlog among those that accept the ticket; None if one of these is idle.

        If no worker accepts it, the next one to do so may be any of them.
        """
        current = [each for each in self._capacities.values() if each.is_current(now)]
        full = {key for each in current for key in each.refusing_workers(reserved_tokens)}
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
