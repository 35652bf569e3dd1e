"""Targets: how the whole of one scope is divided among regions, by what each of them uses and wants."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.auth.regions.share import FLOOR, FULL

HEADROOM_PERCENT, HEADROOM = 25, 20  # that a region needs beyond what it uses; thousandths
TIGHT_PERCENT, TIGHT_HEADROOM = 10, 10  # the same while regions need more than there is
GROWTH = 2  # a region that refuses requests needs this multiple of its share, as its demand is unknown
SMALLEST = FLOOR.rates


@dataclass(slots=True, frozen=True)
class RegionNeed:
    """What one region has, uses and wants, in thousandths."""

    region: str
    share: int
    used: int
    wanted: int = 0  # 0: it refuses no request
    least: int = SMALLEST  # that it can have
    is_idle: bool = False
    is_fixed: bool = False  # there is no contact

    @property
    def is_refusing(self) -> bool:
        return self.wanted > 0

    def need(self, percent: int, headroom: int) -> int:
        if self.is_fixed:
            return self.share
        if self.is_idle and not self.is_refusing:
            return self.least
        need = -(-self.used * (100 + percent) // 100) + headroom
        if self.is_refusing:
            need = max(need, GROWTH * self.share, self.wanted)
        return min(FULL, max(self.least, need))


def targets_of(regions: Sequence[RegionNeed]) -> dict[str, int]:
    """Return the share that each region should have.

    If all needs can be met, the rest is divided among the regions with demand in proportion to their needs. If not,
    each region gets its need or an equal part, whichever is less.
    """
    needs = {each.region: each.need(HEADROOM_PERCENT, HEADROOM) for each in regions}
    rest = FULL - sum(needs.values())
    if rest < 0:
        return _limited(regions)
    weights = {each.region: needs[each.region] for each in regions if not (each.is_idle or each.is_fixed)}
    total = sum(weights.values())
    if not total:
        shares = {each.region: each.share for each in regions}
        return shares if sum(shares.values()) <= FULL else needs
    return {name: need + rest * weights.get(name, 0) // total for name, need in needs.items()}


def _limited(regions: Sequence[RegionNeed]) -> dict[str, int]:
    """Return targets for needs that are above the whole."""
    bounds = [
        (each.region, each.share if each.is_fixed else each.least, each.need(TIGHT_PERCENT, TIGHT_HEADROOM))
        for each in regions
    ]
    low, high = 0, FULL + 1  # the sum is at most the whole for `low`
    while high - low > 1:
        level = (low + high) // 2
        if sum(max(least, min(need, level)) for _, least, need in bounds) <= FULL:
            low = level
        else:
            high = level
    return {region: max(least, min(need, low)) for region, least, need in bounds}
