"""Bucket: a rate limit per minute."""

from collections.abc import Iterable
from dataclasses import dataclass

MINUTE_US = 60_000_000  # µs
MIN_CAPACITY = 4  # runs of the smallest tree
NEVER = -(2**200)  # before every time, of nodes without runs


def to_micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


@dataclass(slots=True, eq=False)
class TakeRun:
    """A take, with the earlier settled takes that were merged into it."""

    start: int  # µs
    amount: int
    index: int = 0  # position in its bucket
    is_settled: bool = False


class Bucket:
    """The generic cell rate algorithm (ITU-T I.371, virtual scheduling), with takes that may be reduced later.

    A full bucket grants `per_minute` at once and is full again after one minute. `_full_at` is the time at which it is
    full. Unrolled, it is the maximum over the takes of `start + (all amounts taken since start) / rate`. A settlement
    subtracts the unused amount from this sum, so the state is as if each take had asked for the amount that it used.
    A settlement therefore neither loses tokens nor saves tokens beyond the burst.

    A binary tree over the runs holds the sum of amounts and this maximum for each node, so that a take and a settlement
    change as many nodes as the tree has levels. A node's children are at 2 n and 2 n + 1, the root is at 1.

    All values are integers: times in µs, `_full_at` in µs times `per_minute`.
    """

    def __init__(self, per_minute: int, *, full_at: int = 0) -> None:
        self.per_minute = per_minute
        self._build([TakeRun(full_at, 0, is_settled=True)])

    def __repr__(self) -> str:
        return f"<Bucket {self.per_minute}/min, full at {self.full_at} µs>"

    @property
    def _full_at(self) -> int:
        return self._latest[1]

    @property
    def full_at(self) -> int:
        """Time in µs, rounded up, at which the bucket is full. It is the only state that a restart needs."""
        return -(-self._full_at // self.per_minute)

    def used_share(self, now: float) -> float:
        """Return the share of the limit that cannot be taken now."""
        return 1 - self.available(now) / self.per_minute

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

    def state(self, now: float) -> tuple[int, int]:
        """Return the amount that can be taken now, and the ms until the bucket is full, rounded up."""
        lacking = self._full_at - to_micros(now) * self.per_minute
        if lacking <= 0:
            return self.per_minute, 0
        return max(0, self.per_minute - -(-lacking // MINUTE_US)), -(-lacking // (1_000 * self.per_minute))

    def take(self, amount: int, now: float) -> TakeRun:
        """Take an amount, also beyond the limit. The take must be settled once."""
        at = to_micros(now)
        if self._full_at <= at * self.per_minute:  # the bucket is full: earlier takes have no effect any more
            self._clear()
        elif len(self._runs) == len(self._sums) // 2:
            self._build(self._merged_runs())
        run = TakeRun(at, amount, len(self._runs))
        self._runs.append(run)
        self._update(run)
        return run

    def settle(self, run: TakeRun, unused: int) -> None:
        """Settle a take of which `unused` was not needed. It has no effect if the bucket was full since the take."""
        if run.index >= len(self._runs) or self._runs[run.index] is not run:
            return
        run.is_settled = True
        if unused:
            run.amount -= unused
            self._update(run)

    def spend(self, amount: int, now: float) -> None:
        """Take an amount and settle it at once."""
        self.settle(self.take(amount, now), 0)

    def set_limit(self, per_minute: int, now: float) -> None:
        """Change the size. The bucket lacks the same amount as before, and each unsettled take counts as before.

        The distance of each take from `now` changes so that the new rate fills in it what the former one did.
        """
        at = to_micros(now)
        for run in self._runs:
            run.start = at + -(-(run.start - at) * self.per_minute // per_minute)
        self.per_minute = per_minute
        self._build(self._runs)

    def text(self, name: str, amount: int) -> str:
        """Return the limit and the requested amount for messages; `name` is what it counts."""
        return f"{self.per_minute} {name} per minute, {amount} requested"

    def _update(self, run: TakeRun) -> None:
        """Compute the node of a changed run and its ancestors."""
        node = len(self._sums) // 2 + run.index
        self._set_leaf(node, run)
        sums, latest = self._sums, self._latest
        while node > 1:
            right = node | 1
            left, node = right - 1, node // 2
            sums[node] = sums[left] + sums[right]
            before, last = latest[left] + sums[right], latest[right]
            latest[node] = max(last, before)  # as `_combine`, without a call for each node

    def _build(self, runs: list[TakeRun]) -> None:
        """Build the tree of these runs, with room for as many more."""
        capacity = max(MIN_CAPACITY, 1 << (2 * len(runs) - 1).bit_length())
        self._runs = runs
        self._sums = [0] * (2 * capacity)
        self._latest = [NEVER] * (2 * capacity)
        for index, run in enumerate(runs):
            run.index = index
            self._set_leaf(capacity + index, run)
        first, end = capacity, capacity + len(runs)
        while first > 1:
            first, end = first // 2, (end + 1) // 2
            self._combine(range(first, end))

    def _clear(self) -> None:
        """Build the tree without runs."""
        self._runs, self._sums, self._latest = [], [0] * (2 * MIN_CAPACITY), [NEVER] * (2 * MIN_CAPACITY)

    def _set_leaf(self, leaf: int, run: TakeRun) -> None:
        self._sums[leaf] = run.amount * MINUTE_US
        self._latest[leaf] = run.start * self.per_minute + self._sums[leaf]

    def _combine(self, nodes: Iterable[int]) -> None:
        """Compute nodes from their children, of which those on the right took later."""
        sums, latest = self._sums, self._latest
        for node in nodes:
            left, right = 2 * node, 2 * node + 1
            sums[node] = sums[left] + sums[right]
            latest[node] = max(latest[left] + sums[right], latest[right])

    def _merged_runs(self) -> list[TakeRun]:
        """Return the runs with each settled one merged into a neighbour: at most one more than unsettled takes.

        A settled run either always reaches the start of its successor, and both become one run; or it never does, and
        its start has no effect any more, while its amount counts for the run before it.
        """
        merged: list[TakeRun] = []
        for run in self._runs:
            if merged and merged[-1].is_settled:
                settled = merged.pop()
                if (settled.start - run.start) * self.per_minute + settled.amount * MINUTE_US > 0:
                    run.start = settled.start
                    run.amount += settled.amount
                elif merged:
                    merged[-1].amount += settled.amount
            merged.append(run)
        return merged
