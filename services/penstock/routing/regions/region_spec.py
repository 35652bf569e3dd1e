"""Regions: the other regions of a mesh, in the operator's order of preference."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.chassis.region_doors import parse_doors
from penstock.routing.edges.edge_spec import Address

# Each set of regions that a tenant may be allowed has routes and clusters of its own.
MAX_OTHER_REGIONS = 3


@dataclass(frozen=True, slots=True)
class Region:
    """Another region, with the address of its region door."""

    name: str
    door: Address


def parse_regions(items: Iterable[str], *, own: str) -> tuple[Region, ...]:
    """Parse items `NAME=HOST:PORT`. Raises ValueError as `parse_doors`, and if there are too many."""
    doors = parse_doors(items, own=own)
    if len(doors) > MAX_OTHER_REGIONS:
        raise ValueError(f"regions must list at most {MAX_OTHER_REGIONS} other regions")
    return tuple(Region(name, Address.parse(door)) for name, door in doors.items())
