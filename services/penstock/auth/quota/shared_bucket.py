"""Shared bucket: the part of a limit per minute that this region enforces, with a meter of what is spent."""

from math import exp

from penstock.auth.quota.bucket import Bucket, TakeRun
from penstock.auth.regions.share import FULL, LargestShare, scaled

METER_S = 20.0  # s; time constant of the meter: older takes count less
RETRY_AFTER_S = 1.0  # s until the share may have grown


class SharedBucket(Bucket):
    """A bucket whose size is a share of the whole limit."""

    def __init__(self, whole: int, share: int, largest: LargestShare, *, full_at: int = 0) -> None:
        super().__init__(scaled(whole, share), full_at=full_at)
        self.whole = whole
        self._largest = largest
        self._unmetered = 0  # taken since the latest measurement
        self._rate = 0.0  # per minute, at the latest measurement
        self._measured_at = 0.0  # s

    def wait(self, amount: int, now: float) -> float | None:
        if self.per_minute < amount <= self._largest.part_of(self.whole):
            return RETRY_AFTER_S
        return super().wait(amount, now)

    def take(self, amount: int, now: float) -> TakeRun:
        self._unmetered += amount
        return super().take(amount, now)

    def settle(self, run: TakeRun, unused: int) -> None:
        self._unmetered -= unused
        super().settle(run, unused)

    def set_share(self, share: int, now: float) -> None:
        """Change the share. What can be taken at present stays the same, and is at most the new size.

        The size that one region gains is empty, because another one may have spent it in the last minute.
        """
        added = scaled(self.whole, share) - self.per_minute
        self.set_limit(self.per_minute + added, now)
        super().settle(super().take(added, now), 0)

    def set_whole(self, whole: int, share: int, now: float) -> None:
        """Change the limit, as the operator has set it."""
        self.whole = whole
        self.set_limit(scaled(whole, share), now)

    def used(self, now: float) -> int:
        """Return what is spent per minute, in thousandths of the whole limit."""
        elapsed = max(0.0, now - self._measured_at)
        self._rate = max(0.0, self._rate * exp(-elapsed / METER_S) + self._unmetered * 60.0 / METER_S)
        self._measured_at, self._unmetered = now, 0
        return min(FULL, round(self._rate * FULL / self.whole))

    def text(self, name: str, amount: int) -> str:
        most = max(self.per_minute, self._largest.part_of(self.whole))
        bound = f", which can have {most} at most" if amount > most else ""
        return f"{self.per_minute} of {self.whole} {name} per minute in this region{bound}, {amount} requested"
