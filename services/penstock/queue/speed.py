"""How fast a model's workers are and when their slots fall free, by what their schedulers report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple


class Release(NamedTuple):
    """A point of the curve by which leases end."""

    after: float  # s from the report, if nothing were prefilled
    leases: int  # ended by then


class Speed(NamedTuple):
    """One scheduler's workers of one model; 0: not measured yet."""

    at: float  # s; when it was heard
    tokens_per_second: float = 0.0  # prompt and output, while busy
    prefill_tokens_per_second: float = 0.0  # of one worker, beside its decodes
    prefill_backlog: float = 0  # tokens, on the worker that is next
    step_time: float = 0.0  # s
    free_slots: int = 0  # sequences
    slots: int = 0
    leases: int = 0
    room: int = 0  # leases that could be given
    workers: int = 0
    pending_prefill: float = 0.0  # tokens, on all workers
    decode_step: float = 0.0  # s, of a step that prefills nothing
    prefill_token: float = 0.0  # s by which a prompt token makes a step of its worker longer
    step_tokens: int = 0  # most that a step has had
    held_tokens: int = 0  # promised to leases
    free_tokens: int = 0  # that could still be promised
    releases: tuple[Release, ...] = ()
    placed: int = 0  # tickets that have gone there since

    @property
    def has_law(self) -> bool:
        """Tell whether it says what a step takes, and not only what gets done in the mean."""
        return self.slots > 0 and self.decode_step > 0 and self.prefill_token > 0

    def after(self, prompt_tokens: float) -> "Speed":
        """Count a ticket that has gone there since, as what comes before the next report must not all seem first."""
        return self._replace(
            prefill_backlog=self.prefill_backlog + prompt_tokens,
            pending_prefill=self.pending_prefill + prompt_tokens * max(1, self.workers),
            free_slots=max(0, self.free_slots - 1),
            placed=self.placed + 1,
        )

    def prefill(self, prompt_tokens: int) -> float:
        """Return the s from a lease to the first token, but for what is before it."""
        rate = self.prefill_tokens_per_second
        return (prompt_tokens / rate if rate else 0.0) + self.step_time

    @property
    def backlog(self) -> float:
        """Return the s in which the worker that is next gets to a new prompt."""
        rate = self.prefill_tokens_per_second
        return self.prefill_backlog / rate if rate else 0.0


def together(speeds: Sequence[Speed]) -> Speed:
    """Take several schedulers' workers for those of one, but for their releases; laws are means by slots."""
    if len(speeds) == 1:
        return speeds[0]
    slots = sum([each.slots for each in speeds])
    weighted = [(each.slots / slots, each) for each in speeds]
    return Speed(
        at=sum([weight * each.at for weight, each in weighted]),
        step_time=sum([weight * each.step_time for weight, each in weighted]),
        slots=slots,
        leases=sum([each.leases for each in speeds]),
        room=sum([each.room for each in speeds]),
        workers=sum([each.workers for each in speeds]),
        pending_prefill=sum([each.pending_prefill for each in speeds]),
        decode_step=sum([weight * each.decode_step for weight, each in weighted]),
        prefill_token=sum([weight * each.prefill_token for weight, each in weighted]),
        step_tokens=max([each.step_tokens for each in speeds]),
        held_tokens=sum([each.held_tokens for each in speeds]),
        free_tokens=sum([each.free_tokens for each in speeds]),
        placed=sum([each.placed for each in speeds]),
    )


def merged(curves: Sequence[Sequence[Release]]) -> Sequence[Release]:
    """Add curves up, each step of one where it comes."""
    if len(curves) == 1:
        return curves[0]
    steps = sorted(
        (two.after, two.leases - one.leases) for curve in curves for one, two in pairwise((Release(0.0, 0), *curve))
    )
    return tuple(map(Release, (after for after, _ in steps), accumulate(more for _, more in steps)))


@dataclass(slots=True)
class ServiceRate:
    """Tokens per second of a model's workers with as much to do as they can hold.

    A batch of one is far slower than a full one, so what is measured while there is room tells no more than a lower
    bound: it can raise the figure, and only what is measured while tickets wait can lower it.
    """

    full: float = 0.0  # 0: not known yet
    _least: float = 0.0

    def note(self, speeds: Iterable[Speed], *, is_saturated: bool) -> None:
        measured = sum(each.tokens_per_second for each in speeds)
        if not measured:
            return
        if is_saturated:
            self.full = self._least = measured
        else:
            self._least = max(self._least, measured)
            self.full = max(self.full, self._least) if self.full else 0.0
