"""The order in which the regions are tried for a call, from the regions that its tenant allows."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from penstock.routing.regions.region_state import ALL, RegionState

Order = tuple[str, ...]  # names of regions; the first one that has a healthy edge serves the call

TOTAL: Final = ALL * ALL  # sum of the weights of the orders of a call


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPlan:
    """Where new calls go. Two plans are equal if proxies treat all calls alike under both."""

    own: str = ""
    others: tuple[str, ...] = ()  # in order of preference
    shares: Mapping[str, int] = field(default_factory=dict)  # percent of its calls that a region gets; absent: 100
    weights: Mapping[str, int] = field(default_factory=dict)  # percent of new calls that go to another region first

    @classmethod
    def of(cls, own: str, others: Iterable[str], state: RegionState, now: float, step_s: float) -> "TrafficPlan":
        """Return the plan of `state` at the Unix time `now`. Regions of the state that are not listed are ignored."""
        listed = tuple(others)
        regions = (own, *listed) if listed else ()
        return cls(
            own=own,
            others=listed,
            shares={name: state.share(name, now, step_s) for name in regions},
            weights={name: state.weights[name] for name in listed if name in state.weights},
        )

    def share(self, region: str) -> int:
        return self.shares.get(region, ALL)

    @property
    def is_drained(self) -> bool:
        """Whether the own region is drained."""
        return self.share(self.own) == 0

    @property
    def regions(self) -> Order:
        """The regions that may get calls: the own one, which is the last resort if it is drained, and open ones."""
        return (self.own, *(name for name in self.others if self.share(name)))

    def orders(self, allowed: Collection[str]) -> dict[Order, int]:
        """Return the orders of calls whose tenant allows the own region and these, with weights whose sum is `TOTAL`.

        Auth refuses the calls of other tenants before they are routed.
        """
        others = tuple(name for name in self.regions[1:] if name in allowed)
        if not others:
            return {(self.own,): TOTAL}
        away = {name: self.weights.get(name, 0) * self.share(name) // ALL for name in others}
        at_home = self.share(self.own)
        found: Counter[Order] = Counter()
        found[(self.own, *others)] += (ALL - sum(away.values())) * at_home
        for name, percent in away.items():
            found[_one_first(name, self.own, others)] += percent * at_home
        found[(*others, self.own)] += (ALL - at_home) * ALL
        return {order: weight for order, weight in found.items() if weight}

    def first_shares(self) -> dict[str, float]:
        """Return the percent of new calls that each region is the first for, if their tenant allows all regions."""
        found = dict.fromkeys((self.own, *self.others), 0.0)
        for order, weight in self.orders(self.regions).items():
            found[order[0]] += weight / ALL
        return found

    def allowed_sets(self) -> Iterator[Order]:
        """Yield each set of regions, with the own one, that a tenant may allow, larger ones first."""
        for others in _subsets(self.regions[1:]):
            yield self.own, *others


def all_orders(own: str, others: Order) -> list[Order]:
    """Return the orders of two and more regions that any plan of these regions can have."""
    found: dict[Order, None] = {}
    for away in filter(None, _subsets(others)):
        orders = [(own, *away), (*away, own), *(_one_first(name, own, away) for name in away)]
        found.update(dict.fromkeys(orders))
    return list(found)


def _one_first(first: str, own: str, others: Order) -> Order:
    return (first, own, *(name for name in others if name != first))


def _subsets(names: Order) -> Iterator[Order]:
    for size in range(len(names), -1, -1):
        yield from combinations(names, size)
