"""Doors of other regions, as a setting names them."""

from collections.abc import Sequence

from penstock.chassis.config import check_address, check_region


def parse_doors(texts: Sequence[str]) -> dict[str, str]:
    """Return addresses by region, in their order. Raises ValueError for a text that is not `name=host:port`."""
    doors: dict[str, str] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        if not name or not equals:
            raise ValueError(f"{text!r} must be name=host:port")
        check_region("a region", name)
        if name in doors:
            raise ValueError(f"{name} is named twice")
        check_address(f"the door of {name}", address)
        doors[name] = address
    return doors
