"""Service that tenants got over time, in weighted tokens: 1 for one of input, 2 for one of output (as VTC counts)."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, combinations

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2


class Served:
    """Counts by slices of `every` s. A tenant is backlogged in a slice in all of which a ticket of it waited."""

    def __init__(self, every: float) -> None:
        self.every = every
        self._given: dict[str, dict[int, float]] = {}  # by tenant and slice
        self._waiting: dict[str, int] = {}  # tickets
        self._ran_dry: set[str] = set()  # in this slice
        self._backlogged: list[frozenset[str]] = []  # by slice

    def waiting(self, tenant: str, change: int) -> None:
        self._waiting[tenant] = self._waiting.get(tenant, 0) + change
        if not self._waiting[tenant]:
            self._ran_dry.add(tenant)

    def close_slice(self) -> None:
        self._backlogged.append(frozenset(each for each, count in self._waiting.items() if count) - self._ran_dry)
        self._ran_dry = {each for each, count in self._waiting.items() if not count}

    def give_input(self, tenant: str, at: float, tokens: int) -> None:
        slices = self._given.setdefault(tenant, {})
        place = int(at / self.every)
        slices[place] = slices.get(place, 0.0) + tokens * INPUT_WEIGHT

    def give_output(self, tenant: str, ends: Sequence[float], first: int, count: int) -> None:
        """Note `count` tokens, one at each of `ends` from `first` on."""
        slices, over = self._given.setdefault(tenant, {}), first + count
        while first < over:
            place = int(ends[first] / self.every)
            upto = max(first + 1, bisect_right(ends, (place + 1) * self.every, first, over))
            slices[place] = slices.get(place, 0.0) + (upto - first) * OUTPUT_WEIGHT
            first = upto

    def sums(self) -> dict[str, list[float]]:
        """Return each tenant's service up to the end of each slice."""
        slices = range(len(self._backlogged))
        return {
            tenant: list(accumulate(given.get(place, 0.0) for place in slices))
            for tenant, given in sorted(self._given.items())
        }

    def max_gap(self) -> float:
        """Return the largest difference of service between two tenants over any stretch in which both had a backlog."""
        sums = self.sums()
        return max((self._gap(sums, one, other) for one, other in combinations(sums, 2)), default=0.0)

    def _gap(self, sums: dict[str, list[float]], one: str, other: str) -> float:
        """A stretch begins with the sums at the end of the slice before it."""
        widest, low, high, is_within = 0.0, 0.0, 0.0, False
        for place, backlogged in enumerate(self._backlogged):
            if one not in backlogged or other not in backlogged:
                is_within = False
                continue
            if not is_within:
                low = high = sums[one][place - 1] - sums[other][place - 1] if place else 0.0
                is_within = True
            lead = sums[one][place] - sums[other][place]
            low, high = min(low, lead), max(high, lead)
            widest = max(widest, high - low)
        return widest
