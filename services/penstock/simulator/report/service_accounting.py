"""Service per tenant over time, in weighted tokens: 1 per input token and 2 per output token, as in VTC."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, combinations
from typing import NamedTuple

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2


class ServiceGaps(NamedTuple):
    """Differences of service between two tenants while both had a backlog, in weighted tokens."""

    widest: float  # over any interval of that time, which VTC's theorem bounds
    lead: float  # since the start of that time, as the logs of VTC's artifact show it


class ServiceOverTime:
    """Service per tenant and slice of `slice_s`. A tenant is backlogged in a slice if a ticket waited all the time."""

    def __init__(self, slice_s: float) -> None:
        self.slice_s = slice_s
        self._service: dict[str, dict[int, float]] = {}  # by tenant and slice
        self._waiting: dict[str, int] = {}  # tickets by tenant
        self._emptied: set[str] = set()  # tenants without a waiting ticket at some time in this slice
        self._backlogged: list[frozenset[str]] = []  # by slice

    def count_waiting(self, tenant: str, change: int) -> None:
        before = self._waiting.get(tenant, 0)
        self._waiting[tenant] = before + change
        if not before or not self._waiting[tenant]:
            self._emptied.add(tenant)

    def close_slice(self) -> None:
        self._backlogged.append(frozenset(each for each, count in self._waiting.items() if count) - self._emptied)
        self._emptied = {each for each, count in self._waiting.items() if not count}

    def record_input(self, tenant: str, at: float, tokens: int) -> None:
        slices = self._service.setdefault(tenant, {})
        place = int(at / self.slice_s)
        slices[place] = slices.get(place, 0.0) + tokens * INPUT_WEIGHT

    def record_output(self, tenant: str, step_ends: Sequence[float], first_step: int, count: int) -> None:
        """Record `count` tokens, one at the end of each step from `first_step` on."""
        slices, end_step = self._service.setdefault(tenant, {}), first_step + count
        while first_step < end_step:
            place = int(step_ends[first_step] / self.slice_s)
            next_step = max(first_step + 1, bisect_right(step_ends, (place + 1) * self.slice_s, first_step, end_step))
            slices[place] = slices.get(place, 0.0) + (next_step - first_step) * OUTPUT_WEIGHT
            first_step = next_step

    def cumulative(self) -> dict[str, list[float]]:
        """Return each tenant's service up to the end of each slice."""
        slices = range(len(self._backlogged))
        return {
            tenant: list(accumulate(by_slice.get(place, 0.0) for place in slices))
            for tenant, by_slice in sorted(self._service.items())
        }

    def gaps(self) -> "ServiceGaps":
        """Return the largest gaps over all pairs of tenants."""
        sums = self.cumulative()
        gaps = [self._pair_gaps(sums[one], sums[other], {one, other}) for one, other in combinations(sums, 2)]
        return ServiceGaps(
            max((each.widest for each in gaps), default=0.0), max((each.lead for each in gaps), default=0.0)
        )

    def _pair_gaps(self, one: Sequence[float], other: Sequence[float], pair: set[str]) -> "ServiceGaps":
        """Return the gaps of one pair; an interval starts with the sums at the end of the slice before it."""
        widest = lead = 0.0
        low = high = 0.0
        start: float | None = None
        for place, backlogged in enumerate(self._backlogged):
            if not pair <= backlogged:
                start = None
                continue
            if start is None:
                low = high = start = one[place - 1] - other[place - 1] if place else 0.0
            now = one[place] - other[place]
            low, high = min(low, now), max(high, now)
            widest, lead = max(widest, high - low), max(lead, abs(now - start))
        return ServiceGaps(widest, lead)
