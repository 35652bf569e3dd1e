"""One rate limit: what may be taken within a minute, and when more may be."""

from dataclasses import dataclass
from itertools import accumulate

MINUTE_US = 60_000_000  # µs


def to_micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


@dataclass(slots=True, eq=False)
class TakeRun:
    """Takes in a row whose place in time no later settlement can change against each other."""

    start: int  # µs
    amount: int
    unsettled: int  # takes whose amount may still shrink


class Bucket:
    """The generic cell rate algorithm (ITU-T I.371, virtual scheduling) with takes that may turn out smaller.

    A full bucket gives `per_minute` at once and fills up again within a minute. `_full_at` is when it is full again;
    unrolled, it is the latest of `start + (all amounts taken since start) / rate` over the takes. What a take gives
    back is taken out of that sum, so the bucket is always in the state it would be in had each take asked for what
    it used in the first place: giving back can neither lose a token nor save one up beyond the burst.

    Whole numbers throughout: times in µs, `_full_at` in µs times `per_minute`.
    """

    def __init__(self, per_minute: int, *, full_at: int = 0) -> None:
        self.per_minute = per_minute
        self._full_at = full_at * per_minute
        self._runs = [TakeRun(full_at, 0, 0)]

    def __repr__(self) -> str:
        return f"<Bucket {self.per_minute}/min, full at {self.full_at} µs>"

    @property
    def full_at(self) -> int:
        """µs, rounded up: all that has to be kept of a bucket over a restart."""
        return -(-self._full_at // self.per_minute)

    def wait(self, amount: int, now: float) -> float | None:
        """Seconds until `amount` can be taken if nobody else takes: 0 for now, None for never."""
        if amount > self.per_minute:
            return None
        at = to_micros(now) * self.per_minute
        over = max(self._full_at, at) - at - (self.per_minute - amount) * MINUTE_US
        return max(0, -(-over // self.per_minute)) / 1_000_000

    def available(self, now: float) -> int:
        """What can be taken now."""
        at = to_micros(now) * self.per_minute
        return max(0, self.per_minute - -(-max(0, self._full_at - at) // MINUTE_US))

    def take(self, amount: int, now: float) -> TakeRun:
        """Take what `wait` has allowed; to be settled once."""
        at = to_micros(now)
        if self._full_at <= at * self.per_minute:  # full: what was taken before can change nothing any more
            self._full_at = at * self.per_minute
            self._runs.clear()
        self._full_at += amount * MINUTE_US
        stretch = TakeRun(at, amount, 1)
        self._runs.append(stretch)
        self._merge(len(self._runs) - 2)
        return stretch

    def settle(self, run: TakeRun, unused: int) -> None:
        """End a take, of which `unused` was not needed; nothing to do when the bucket has been full since.

        Costs a look at each unsettled take since then.
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
        """Take for good."""
        self.settle(self.take(amount, now), 0)

    def with_limit(self, per_minute: int, now: float) -> "Bucket":
        """A bucket of another size that owes the same. What is under way now gives nothing back to it."""
        at = to_micros(now)
        owed = max(0, self._full_at - at * self.per_minute)  # amount times MINUTE
        return Bucket(per_minute, full_at=at + -(-owed // per_minute))

    def _latest_full_at(self) -> int:
        taken, limit = accumulate(each.amount for each in reversed(self._runs)), self.per_minute
        starts = (each.start for each in reversed(self._runs))
        return max(start * limit + amount * MINUTE_US for start, amount in zip(starts, taken, strict=True))

    def _merge(self, index: int) -> None:
        """Join a settled stretch to a neighbour, so that there are never more stretches than unsettled takes and two.

        Settled, it either reaches its successor's start for ever, and both are one stretch, or for ever does not, and
        its start counts no more while its amount still follows what came before.
        """
        if not 0 <= index < len(self._runs) - 1 or self._runs[index].unsettled:
            return
        settled, successor = self._runs.pop(index), self._runs[index]
        if (settled.start - successor.start) * self.per_minute + settled.amount * MINUTE_US > 0:
            successor.start = settled.start
            successor.amount += settled.amount
        elif index:
            self._runs[index - 1].amount += settled.amount
