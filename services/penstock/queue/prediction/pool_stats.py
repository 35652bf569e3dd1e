"""How fast a model's workers are and when their slots fall free, by what their schedulers report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from types import MappingProxyType
from typing import NamedTuple

NO_BACKLOGS: Mapping[str, int] = MappingProxyType({})


class SlotRelease(NamedTuple):
    """A point of the curve by which leases end."""

    after: float  # s from the report, if nothing were prefilled
    ended_leases: int  # ended by then


class PoolStats(NamedTuple):
    """One scheduler's workers of one model; 0: not measured yet."""

    received_at: float  # s; when it was heard
    tokens_per_second: float = 0.0  # prompt and output, while busy
    prefill_tokens_per_second: float = 0.0  # of one worker, beside its decodes
    next_worker_backlog: float = 0  # tokens, on the worker that is next
    step_time: float = 0.0  # s
    free_slots: int = 0  # sequences
    slots: int = 0
    leases: int = 0
    available_leases: int = 0  # leases that could be given
    workers: int = 0
    pending_prefill_tokens: float = 0.0  # tokens, on all workers
    decode_step_time: float = 0.0  # s, of a step that prefills nothing
    seconds_per_prefill_token: float = 0.0  # s by which a prompt token makes a step of its worker longer
    max_step_tokens: int = 0  # most that a step has had
    leased_tokens: int = 0  # promised to leases
    free_tokens: int = 0  # that could still be promised
    releases: tuple[SlotRelease, ...] = ()
    prefill_backlogs: Mapping[str, int] = NO_BACKLOGS  # prompt tokens by worker, of workers that have any
    placed_since: int = 0  # tickets that have gone there since

    @property
    def has_step_costs(self) -> bool:
        """Tell whether the cost of a step is known, from the first step on.

        `seconds_per_prefill_token` is 0 while all steps were alike; a NaN or a negative value makes the costs unknown.
        """
        is_linear = 0 <= self.seconds_per_prefill_token < inf
        return self.slots > 0 and self.decode_step_time > 0 and self.max_step_tokens > 0 and is_linear

    def with_ticket_placed(self, prompt_tokens: float) -> "PoolStats":
        """Count a ticket that has gone there since, as what comes before the next report must not all seem first."""
        return self._replace(
            next_worker_backlog=self.next_worker_backlog + prompt_tokens,
            pending_prefill_tokens=self.pending_prefill_tokens + prompt_tokens * max(1, self.workers),
            free_slots=max(0, self.free_slots - 1),
            placed_since=self.placed_since + 1,
        )

    def prefill_time(self, prompt_tokens: int) -> float:
        """Return the s from a lease to the first token, but for what is before it."""
        rate = self.prefill_tokens_per_second
        return (prompt_tokens / rate if rate else 0.0) + self.step_time

    @property
    def next_worker_backlog_time(self) -> float:
        """Return the s in which the worker that is next gets to a new prompt."""
        rate = self.prefill_tokens_per_second
        return self.next_worker_backlog / rate if rate else 0.0


def combined(stats: Sequence[PoolStats]) -> PoolStats:
    """Take several schedulers' workers for those of one, but for their releases; laws are means by slots."""
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
    """Add curves up, each step of one where it comes."""
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
    """Tokens per second of a model's workers with as much to do as they can hold.

    A batch of one is far slower than a full one, so what is measured while there is room tells no more than a lower
    bound: it can raise the figure, and only what is measured while tickets wait can lower it.
    """

    saturated: float = 0.0  # 0: not known yet
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
