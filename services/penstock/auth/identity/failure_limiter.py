"""Failure limiter: how many failing credentials a source or an edge may present. No clock; `now` is an argument."""

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from penstock.chassis.errors import Overloaded

ROUNDING_S = 1e-3  # s; error of a sum of floats near the time of day


class TooManyFailures(Overloaded):
    """The source presented too many failing credentials, so that its next one is not looked at for a while."""

    default_reason = "TOO_MANY_FAILURES"

    def __init__(self, wait: float) -> None:
        seconds = math.ceil(wait)  # whole, so that few answers differ
        text = f"too many calls of this source failed to authenticate; retry in {seconds} s"
        super().__init__(text, retry_after=float(seconds))


class FailureLimit(NamedTuple):
    """One bucket: a name, such as an address, and the failures that it may have at once and per minute."""

    name: str
    per_minute: int


class FailureLimiter:
    """A bucket of failures for each name: full at the start, refilled at its rate, like auth/quota/bucket.py's.

    Above `max_names` the bucket that failed least recently is forgotten, and is then full.
    """

    def __init__(self, *, max_names: int) -> None:
        self._max_names = max_names
        self._full_at: OrderedDict[str, float] = OrderedDict()  # s at which a bucket is full, by its latest failure

    def __len__(self) -> int:
        return len(self._full_at)

    def retry_after(self, limits: Iterable[FailureLimit], now: float) -> float:
        """Return the s until each bucket has a failure left; 0 if all have."""
        waits = (self._full_at[each.name] - now - 60.0 + 60.0 / each.per_minute for each in limits if self._has(each))
        longest = max(waits, default=0.0)
        return longest if longest > ROUNDING_S else 0.0

    def record(self, limits: Iterable[FailureLimit], now: float) -> None:
        """Count a failure."""
        for each in limits:
            self._full_at[each.name] = max(now, self._full_at.get(each.name, now)) + 60.0 / each.per_minute
            self._full_at.move_to_end(each.name)
            if len(self._full_at) > self._max_names:
                self._full_at.popitem(last=False)

    def _has(self, limit: FailureLimit) -> bool:
        return limit.name in self._full_at
