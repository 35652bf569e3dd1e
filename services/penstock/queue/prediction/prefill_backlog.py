"""The prompts that the workers of a model prefill now, by worker. Pure arithmetic.

They are tracked from placements of this and of other shards, the time that passes and the backlogs that schedulers
report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from penstock.queue.prediction.pool_stats import WorkerCapacity
from penstock.queue.prediction.prefill_sharing import StepCosts, idle_prefill_time
from penstock.queue.prediction.worker_backlog import (
    PLACEHOLDER_PREFIX,
    JoinEstimate,
    PendingPrompt,
    WorkerBacklog,
    commitment_rank,
)

MAX_REMOTE_PROMPTS = 64  # prompts at one worker, beyond which prompts of other shards are not modelled separately
MAX_CAPACITY_AGE_S = 2.0  # twice the longest time between reports of a scheduler


class RemotePrompt(NamedTuple):
    """A prompt of another shard, as its scheduler reports it."""

    worker: str
    tokens: int  # to prefill
    priority: int
    is_express: bool
    due_in: float  # s; inf: no first token was promised
    usable_share: float  # of this time

    @property
    def rank(self) -> int:
        return commitment_rank(self.priority, is_express=self.is_express)


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

    def on_placed_elsewhere(self, placed: RemotePrompt, scheduler: str, now: float, steps: StepCosts) -> None:
        """Add a prompt that another shard has placed."""
        backlog = self._workers.get(placed.worker)
        if backlog and len(backlog.prompts) >= MAX_REMOTE_PROMPTS:
            return
        prompt = PendingPrompt(placed.tokens, placed.is_express, placed.rank, is_placed=True)
        prompt.promised_by, prompt.usable_share = now + placed.due_in, placed.usable_share
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

    def remove(self, prompt: PendingPrompt, now: float, steps: StepCosts, *, is_complete: bool = False) -> None:
        """Remove a prompt that will not be computed, or is complete at `now`."""
        backlog = self._workers.get(prompt.worker)
        if backlog is None:
            return
        backlog.advance(now, steps)
        if is_complete:
            backlog.complete(prompt, steps)
        else:
            backlog.remove(prompt)
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
        backlog.append(prompt, now)
        prompt.worker = worker
