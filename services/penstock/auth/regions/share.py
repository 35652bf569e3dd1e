"""Shares: the part of the limits and budgets of one scope that one region may spend, in thousandths."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

FULL = 1_000  # thousandths: the whole limit
MAX_SPENDING_REGIONS = 3  # besides the home region


class Share(NamedTuple):
    """What a region may spend of one scope, 0 to `FULL` each."""

    rates: int  # of limits per minute and of concurrent requests
    budgets: int

    def at_least(self, other: "Share") -> "Share":
        return Share(max(self.rates, other.rates), max(self.budgets, other.budgets))

    def at_most(self, other: "Share") -> "Share":
        return Share(min(self.rates, other.rates), min(self.budgets, other.budgets))


WHOLE = Share(FULL, FULL)
FLOOR = Share(50, 50)  # each region always has it, also without a row and before the first contact


@dataclass(slots=True)
class LargestShare:
    """The largest share that one region can have, in thousandths: each other region keeps the smallest one.

    A region that follows its home knows it from the home, and until then assumes that there is no third region.
    """

    thousandths: int = FULL - FLOOR.rates

    def part_of(self, limit: int) -> int:
        """Return the largest amount of a limit that one region can spend."""
        return scaled(limit, self.thousandths)


def largest_share(regions: int) -> LargestShare:
    """Return the largest share of one region beside a number of other regions."""
    return LargestShare(FULL - regions * FLOOR.rates)


class ShareRow(NamedTuple):
    """A share as it is stored. At home: the most that the region may believe; in the region: what it holds."""

    tenant_id: str
    scope: str  # as in `ScopeUse`
    region: str
    rates: int
    budgets: int

    @property
    def share(self) -> Share:
        return Share(self.rates, self.budgets)


ScopeKey: TypeAlias = tuple[str, str]  # tenant and scope
ShareOf: TypeAlias = Callable[[str, str], Share]  # of tenant and scope


class RegionShares(NamedTuple):
    """The shares of a region, as its quotas use them."""

    of: ShareOf
    largest: LargestShare
    active: set[ScopeKey]  # whose demand is reported next; requests add to it


def scaled(limit: int, share: int) -> int:
    """Return the limit that a region enforces. No limit (0) stays no limit, and any other is at least 1."""
    return max(1, limit * share // FULL) if limit else 0


def share_for(amount: int, limit: int) -> int:
    """Return the least share whose part of the limit admits `amount`, at most `FULL`."""
    return min(FULL, max(0, -(-amount * FULL // limit)))
