"""Demand: the number of workers that the waiting, running and expected work of a shard needs, per model. Pure.

A worker is full in one of three ways: its slots are leased, its KV tokens are promised, or its steps have no time for
further prompts. Each way gives a number of workers, and the largest one is needed. The numbers of a shard are sent
apart, because only the sums over all shards can be compared.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.queue.prediction.pool_stats import PoolStats, combined

MAX_FULLNESS = 0.85  # share of slots and KV tokens that is planned for; the rest takes bursts
MAX_PREFILL_SHARE = 0.75  # share of a worker's time that is planned for prompts; the rest is for decodes and bursts
RATE_TIME_CONSTANT_S = 30.0  # s; arrivals 90 s ago count 5 %
# s in which the workers should serve the tickets that wait now. Much less than the time that a worker loads would start
# workers that find no work.
CATCH_UP_S = 120.0
# Workers for tickets of class batch at one shard. They use what others leave: the sum over all shards, rounded up, is
# the first worker.
BATCH_WORKERS = 0.01


class WorkerSize(NamedTuple):
    """The size of one worker, as a mean over the workers of a model; 0: not known."""

    slots: float = 0.0
    tokens: float = 0.0  # prompt plus output tokens that can be promised
    seconds_per_prompt_token: float = 0.0
    decode_step_time: float = 0.0  # s


class TicketSize(NamedTuple):
    """The mean size of a ticket of a model; 0: not known."""

    prompt_tokens: float = 0.0
    output_tokens: float = 0.0  # as predicted


class ShardWork(NamedTuple):
    """Work of one shard for one model, in tickets and in their prompt plus output tokens."""

    running: int
    running_tokens: int
    waiting: int
    waiting_tokens: int
    waiting_prompt_tokens: int
    held: int  # requests that edges hold, whose tokens are not known
    batch: int = 0  # tickets of class batch that run or wait, which the other numbers do not include

    @property
    def is_empty(self) -> bool:
        return not (self.running or self.waiting or self.held)


class WorkersNeeded(NamedTuple):
    """Workers that a shard needs, as fractions, by the three ways in which a worker is full."""

    by_slots: float = 0.0
    by_tokens: float = 0.0
    by_prefill: float = 0.0

    def plus(self, other: "WorkersNeeded") -> "WorkersNeeded":
        return WorkersNeeded(
            self.by_slots + other.by_slots, self.by_tokens + other.by_tokens, self.by_prefill + other.by_prefill
        )

    @property
    def workers(self) -> float:
        """The workers that are needed; the caller rounds up."""
        return max(self)


@dataclass(slots=True)
class ArrivalRates:
    """Exponentially weighted rates of tickets and of their prompt tokens."""

    _tickets: float = 0.0  # decayed by their age, as the next one
    _prompt_tokens: float = 0.0
    _updated_at: float = -math.inf  # s

    def record(self, prompt_tokens: int, at: float) -> None:
        """Record a ticket by its first arrival `at`, which may be before that of earlier ones."""
        if at > self._updated_at:
            decay = self._decay(at)
            self._tickets, self._prompt_tokens = decay * self._tickets, decay * self._prompt_tokens
            self._updated_at = at
        weight = math.exp((at - self._updated_at) / RATE_TIME_CONSTANT_S)
        self._tickets += weight
        self._prompt_tokens += weight * prompt_tokens

    def per_second(self, now: float) -> tuple[float, float]:
        """Return tickets and prompt tokens per s."""
        share = self._decay(now) / RATE_TIME_CONSTANT_S
        return share * self._tickets, share * self._prompt_tokens

    def _decay(self, now: float) -> float:
        return math.exp(min(0.0, self._updated_at - now) / RATE_TIME_CONSTANT_S)


@dataclass(slots=True)
class ModelDemand:
    """Demand of one model at one shard. It keeps the size of a worker while the model has none."""

    worker: WorkerSize = field(default_factory=WorkerSize)
    arrivals: ArrivalRates = field(default_factory=ArrivalRates)

    def record_pool_stats(self, pool_stats: list[PoolStats]) -> None:
        """Learn the size of a worker from the latest reports of all schedulers."""
        serving = [each for each in pool_stats if each.workers and each.slots]
        if not serving:
            return
        stats = combined(serving)
        self.worker = WorkerSize(
            stats.slots / stats.workers,
            (stats.leased_tokens + stats.free_tokens) / stats.workers,
            max(0.0, stats.seconds_per_prefill_token) or self.worker.seconds_per_prompt_token,
            stats.decode_step_time or self.worker.decode_step_time,
        )

    def workers_needed(self, work: ShardWork, ticket: TicketSize, now: float) -> WorkersNeeded:
        """Return the workers for the work of this shard. While the size of a worker is unknown, any work needs one."""
        worker = self.worker
        if work.is_empty:
            return WorkersNeeded(by_slots=BATCH_WORKERS) if work.batch else WorkersNeeded()
        if not worker.slots:
            return WorkersNeeded(by_slots=1.0)
        tickets_per_s, prompt_tokens_per_s = self.arrivals.per_second(now)
        prompt_tokens = work.waiting_prompt_tokens + work.held * ticket.prompt_tokens
        busy = (prompt_tokens_per_s / MAX_PREFILL_SHARE + prompt_tokens / CATCH_UP_S) * worker.seconds_per_prompt_token
        # Tickets that hold a slot at the same time: those that run, or by Little's law those that arrive, and the share
        # of the waiting ones that has to be added to catch up.
        duration = (
            worker.decode_step_time * ticket.output_tokens + worker.seconds_per_prompt_token * ticket.prompt_tokens
        )
        share = min(1.0, duration / CATCH_UP_S) if duration else 1.0
        concurrent = max(work.running, tickets_per_s * duration) + share * (work.waiting + work.held)
        known = work.running + work.waiting
        tokens = (
            (work.running_tokens + work.waiting_tokens) / known
            if known
            else ticket.prompt_tokens + ticket.output_tokens
        )
        return WorkersNeeded(
            by_slots=concurrent / worker.slots / MAX_FULLNESS,
            by_tokens=concurrent * tokens / worker.tokens / MAX_FULLNESS if worker.tokens else 0.0,
            by_prefill=busy,
        )
