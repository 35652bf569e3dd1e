"""Region doors: the syntax in which an operator lists the other regions, `NAME=HOST:PORT`, in order of preference."""

from collections.abc import Iterable

from penstock.chassis.config import check_address, check_region


def parse_doors(items: Iterable[str], *, own: str) -> dict[str, str]:
    """Return the address of the door by region, in order. `own`: the own region, which is not among them.

    Raises ValueError for an item that is not `NAME=HOST:PORT`, or a region that is listed twice or is the own one.
    """
    doors: dict[str, str] = {}
    for item in items:
        name, equals, address = item.partition("=")
        if not name or not equals:
            raise ValueError(f"regions: {item!r} must be NAME=HOST:PORT")
        check_region("regions: each name", name)
        check_address(f"regions: the door of {name}", address)
        if name == own:
            raise ValueError(f"regions: {name} is the own region; list the others alone")
        if name in doors:
            raise ValueError(f"regions: {name} is listed twice")
        doors[name] = address
    return doors
