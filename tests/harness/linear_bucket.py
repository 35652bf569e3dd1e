"""The bucket as one list of runs: the reference of the tests, whose settlements cost time linear in the takes."""

from dataclasses import dataclass
from itertools import accumulate

from penstock.auth.quota.bucket import MINUTE_US, to_micros


@dataclass(slots=True, eq=False)
class TakeRun:
    """Consecutive takes that no later settlement can reorder."""

    start: int  # µs
    amount: int
    unsettled: int  # takes whose amount may still decrease


class LinearBucket:
    """The generic cell rate algorithm (ITU-T I.371, virtual scheduling), with takes that may be reduced later.

    A full bucket grants `per_minute` at once and is full again after one minute. `_full_at` is the time at which it is
    full. Unrolled, it is the maximum over the takes of `start + (all amounts taken since start) / rate`. A settlement
    subtracts the unused amount from this sum, so the state is as if each take had asked for the amount that it used.
    A settlement therefore neither loses tokens nor saves tokens beyond the burst.

    All values are integers: times in µs, `_full_at` in µs times `per_minute`.
    """

    def __init__(self, per_minute: int, *, full_at: int = 0) -> None:
        self.per_minute = per_minute
        self._full_at = full_at * per_minute
        self._runs = [TakeRun(full_at, 0, 0)]

    def __repr__(self) -> str:
        return f"<LinearBucket {self.per_minute}/min, full at {self.full_at} µs>"

    @property
    def full_at(self) -> int:
        """Time in µs, rounded up, at which the bucket is full. It is the only state that a restart needs."""
        return -(-self._full_at // self.per_minute)

    def wait(self, amount: int, now: float) -> float | None:
        """Return the s until `amount` can be taken if there is no other take; None if it exceeds the limit."""
        if amount > self.per_minute:
            return None
        at = to_micros(now) * self.per_minute
        excess = max(self._full_at, at) - at - (self.per_minute - amount) * MINUTE_US
        return max(0, -(-excess // self.per_minute)) / 1_000_000

    def available(self, now: float) -> int:
        """Return the amount that can be taken now."""
        at = to_micros(now) * self.per_minute
        return max(0, self.per_minute - -(-max(0, self._full_at - at) // MINUTE_US))

    def take(self, amount: int, now: float) -> TakeRun:
        """Take an amount, also beyond the limit. The take must be settled once."""
        at = to_micros(now)
        if self._full_at <= at * self.per_minute:  # the bucket is full: earlier takes have no effect any more
            self._full_at = at * self.per_minute
            self._runs.clear()
        self._full_at += amount * MINUTE_US
        run = TakeRun(at, amount, 1)
        self._runs.append(run)
        self._merge(len(self._runs) - 2)
        return run

    def settle(self, run: TakeRun, unused: int) -> None:
        """Settle a take of which `unused` was not needed. It has no effect if the bucket was full since the take.

        The cost is linear in the number of unsettled takes since then.
        """
        try:
            index = self._runs.index(run)
        except ValueError:
            return
        run.unsettled -= 1
        run.amount -= unused
        if unused:
            self._full_at = self._latest_full_at()
        self._merge(index)

    def spend(self, amount: int, now: float) -> None:
        """Take an amount and settle it at once."""
        self.settle(self.take(amount, now), 0)

    def set_limit(self, per_minute: int, now: float) -> None:
        """Change the size. The bucket lacks the same amount as before, and each unsettled take counts as before."""
        at = to_micros(now)
        for run in self._runs:
            run.start = at + -(-(run.start - at) * self.per_minute // per_minute)
        self.per_minute = per_minute
        self._full_at = self._latest_full_at()

    def _latest_full_at(self) -> int:
        taken, limit = accumulate(each.amount for each in reversed(self._runs)), self.per_minute
        starts = (each.start for each in reversed(self._runs))
        return max(start * limit + amount * MINUTE_US for start, amount in zip(starts, taken, strict=True))

    def _merge(self, index: int) -> None:
        """Merge a settled run with a neighbour, so that there are at most two runs more than unsettled takes.

        A settled run either always reaches the start of its successor, and both become one run; or it never does, and
        its start has no effect any more, while its amount counts for the run before it.
        """
        if not 0 <= index < len(self._runs) - 1 or self._runs[index].unsettled:
            return
        settled, successor = self._runs.pop(index), self._runs[index]
        if (settled.start - successor.start) * self.per_minute + settled.amount * MINUTE_US > 0:
            successor.start = settled.start
            successor.amount += settled.amount
        elif index:
            self._runs[index - 1].amount += settled.amount
