"""Regions: the syntax in which an operator lists the other regions, in order of preference."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.chassis.config import check_region
from penstock.routing.edges.edge_spec import Address

# Each set of regions that a tenant may be allowed has routes and clusters of its own.
MAX_OTHER_REGIONS = 3


@dataclass(frozen=True, slots=True)
class Region:
    """Another region, with the address of its region door."""

    name: str
    door: Address


def parse_regions(items: Iterable[str], *, own: str) -> tuple[Region, ...]:
    """Parse items `NAME=HOST:PORT`. Raises ValueError if a region is listed twice, is `own`, or there are too many."""
    found: dict[str, Region] = {}
    for item in items:
        name, _, door = item.partition("=")
        check_region("regions", name)
        if name in found or name == own:
            raise ValueError(f"regions must list each other region once; {name!r} is this region or listed twice")
        found[name] = Region(name, Address.parse(door))
    if len(found) > MAX_OTHER_REGIONS:
        raise ValueError(f"regions must list at most {MAX_OTHER_REGIONS} other regions")
    return tuple(found.values())
