"""Doors of other regions, as a setting names them."""

import re
from collections.abc import Sequence

from penstock.chassis.config import check_address

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def parse_doors(texts: Sequence[str]) -> dict[str, str]:
    """Return addresses by region, in their order. Raises ValueError for a text that is not `name=host:port`."""
    doors: dict[str, str] = {}
    for text in texts:
        name, equals, address = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ValueError(f"{text!r} must be name=host:port, with a name of lower-case letters, digits and hyphens")
        if name in doors:
            raise ValueError(f"{name} is named twice")
        check_address(f"the door of {name}", address)
        doors[name] = address
    return doors
