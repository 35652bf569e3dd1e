"""Pool statistics: throughput, step costs, slots and slot releases of workers, as schedulers report them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from types import MappingProxyType
from typing import NamedTuple

NO_BACKLOGS: Mapping[str, int] = MappingProxyType({})


class WorkerCapacity(NamedTuple):
    """What one worker accepts before one of its leases ends."""

    leases: int
    tokens: float  # prompt and output tokens; inf: not known

    def accepts(self, tokens: int) -> bool:
        return self.leases > 0 and tokens <= self.tokens

    def plus(self, leases: int, tokens: int) -> "WorkerCapacity":
        return WorkerCapacity(self.leases + leases, self.tokens + tokens)


NO_CAPACITIES: Mapping[str, WorkerCapacity] = MappingProxyType({})


class SlotRelease(NamedTuple):
    """A point of the slot release curve."""

    after: float  # s from the report, for steps without prefill
    ended_leases: int  # leases that have ended by then


class PoolStats(NamedTuple):
    """Statistics of one scheduler's workers of one model; 0: not measured yet."""

    received_at: float  # s
    tokens_per_second: float = 0.0  # prompt and output tokens, while busy
    prefill_tokens_per_second: float = 0.0  # of one worker, in addition to its decodes
    next_worker_backlog: float = 0  # prompt tokens at the worker that the next ticket would be placed on
    step_time: float = 0.0  # s
    free_slots: int = 0  # sequences
    slots: int = 0
    leases: int = 0
    available_leases: int = 0  # leases that the workers can take now
    workers: int = 0
    pending_prefill_tokens: float = 0.0  # prompt tokens at all workers
    decode_step_time: float = 0.0  # s of a step without prefill
    seconds_per_prefill_token: float = 0.0  # s that each prompt token adds to a step of its worker
    max_step_tokens: int = 0  # largest number of tokens in a step
    leased_tokens: int = 0  # promised to leases
    free_tokens: int = 0  # not promised
    releases: tuple[SlotRelease, ...] = ()
    prefill_backlogs: Mapping[str, int] = NO_BACKLOGS  # prompt tokens by worker, of workers that have any
    capacity_by_worker: Mapping[str, WorkerCapacity] = NO_CAPACITIES  # of workers with a backlog or with little of it
    placed_since: int = 0  # tickets offered to the scheduler since the report, without batch tickets

    @property
    def has_step_costs(self) -> bool:
        """Whether the duration of steps is known, which it is from the first step on.

        `seconds_per_prefill_token` is 0 while all steps were alike. NaN or a negative value makes the costs unknown.
        """
        is_linear = 0 <= self.seconds_per_prefill_token < inf
        return self.slots > 0 and self.decode_step_time > 0 and self.max_step_tokens > 0 and is_linear

    def with_batch_ticket_placed(self) -> "PoolStats":
        """Return the statistics with one more batch ticket.

        It takes a slot only if it leaves headroom to other tickets, and its prompt is prefilled after theirs.
        """
        return self._replace(free_slots=max(0, self.free_slots - 1))

    def with_ticket_placed(self, prompt_tokens: float) -> "PoolStats":
        """Return the statistics with one more ticket, so that each ticket before the next report adds to the load."""
        return self._replace(
            next_worker_backlog=self.next_worker_backlog + prompt_tokens,
            pending_prefill_tokens=self.pending_prefill_tokens + prompt_tokens * max(1, self.workers),
            free_slots=max(0, self.free_slots - 1),
            placed_since=self.placed_since + 1,
        )

    def prefill_time(self, prompt_tokens: int) -> float:
        """Return the s from a lease to the first token, without the backlog before it."""
        rate = self.prefill_tokens_per_second
        return (prompt_tokens / rate if rate else 0.0) + self.step_time

    @property
    def next_worker_backlog_time(self) -> float:
        """Return the s until the next worker starts a new prompt."""
        rate = self.prefill_tokens_per_second
        return self.next_worker_backlog / rate if rate else 0.0


def combined(stats: Sequence[PoolStats]) -> PoolStats:
    """Return the statistics of several schedulers as of one, without releases. Step costs are weighted by slots."""
    if len(stats) == 1:
        return stats[0]
    slots = sum([each.slots for each in stats])
    weighted = [(each.slots / slots, each) for each in stats]
    return PoolStats(
        received_at=sum([weight * each.received_at for weight, each in weighted]),
        step_time=sum([weight * each.step_time for weight, each in weighted]),
        slots=slots,
        leases=sum([each.leases for each in stats]),
        available_leases=sum([each.available_leases for each in stats]),
        workers=sum([each.workers for each in stats]),
        pending_prefill_tokens=sum([each.pending_prefill_tokens for each in stats]),
        decode_step_time=sum([weight * each.decode_step_time for weight, each in weighted]),
        seconds_per_prefill_token=sum([weight * each.seconds_per_prefill_token for weight, each in weighted]),
        max_step_tokens=max([each.max_step_tokens for each in stats]),
        leased_tokens=sum([each.leased_tokens for each in stats]),
        free_tokens=sum([each.free_tokens for each in stats]),
        placed_since=sum([each.placed_since for each in stats]),
    )


def merged_releases(curves: Sequence[Sequence[SlotRelease]]) -> Sequence[SlotRelease]:
    """Return the sum of several slot release curves."""
    if len(curves) == 1:
        return curves[0]
    steps = sorted(
        (two.after, two.ended_leases - one.ended_leases)
        for curve in curves
        for one, two in pairwise((SlotRelease(0.0, 0), *curve))
    )
    return tuple(map(SlotRelease, (after for after, _ in steps), accumulate(more for _, more in steps)))


@dataclass(slots=True)
class ServiceRate:
    """Tokens per second of a model's workers with full batches.

    A small batch has a far lower rate than a full one, so a rate that is measured while slots are free is a lower
    bound: it can only raise the estimate. Only a rate that is measured while tickets wait can lower it.
    """

    saturated: float = 0.0  # tokens/s; 0: not known yet
    _lower_bound: float = 0.0

    def record(self, stats: Iterable[PoolStats], *, is_saturated: bool) -> None:
        measured = sum(each.tokens_per_second for each in stats)
        if not measured:
            return
        if is_saturated:
            self.saturated = self._lower_bound = measured
        else:
            self._lower_bound = max(self._lower_bound, measured)
            self.saturated = max(self.saturated, self._lower_bound) if self.saturated else 0.0
