"""Discovery of endpoints: an operator's list, names in it that DNS resolves, or a file with the list."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from penstock.chassis.addresses import address_of
from penstock.chassis.channels import resolve
from penstock.chassis.config import check_address

FILE_SCHEME = "file://"
DNS_SCHEME = "dns:///"
Lookup = Callable[[str], Awaitable[list[str]]]

log = structlog.get_logger()


class EndpointInvalid(ValueError):
    """An item of the list is no endpoint."""


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Parse items separated by commas or newlines; a line may end in a `#` comment. Raises EndpointInvalid.

    An item is ip:port, as proxies know endpoints by their addresses alone, or dns:///name:port.
    """
    lines = (line.partition("#")[0] for line in text.splitlines())
    items = tuple(item.strip() for line in lines for item in line.split(",") if item.strip())
    for item in items:
        try:
            check_address("endpoints", item.removeprefix(DNS_SCHEME))
        except ValueError as error:
            raise EndpointInvalid(str(error)) from None
        if not item.startswith(DNS_SCHEME) and address_of(item) is None:
            raise EndpointInvalid(f"endpoints has {item!r}, which is neither ip:port nor dns:///name:port")
    return items


class EndpointDiscovery:
    """Resolves the list at each poll. A name that no longer resolves keeps its last addresses."""

    def __init__(self, endpoints: str, lookup: Lookup = resolve) -> None:
        self._endpoints = endpoints  # the list, or `file:///path` of one
        self._lookup = lookup
        self._last: dict[str, list[str]] = {}

    async def poll(self) -> frozenset[str]:
        """Return the addresses. Raises EndpointInvalid or OSError if the list cannot be read."""
        found: set[str] = set()
        for item in parse_endpoints(await self._read()):
            try:
                self._last[item] = await self._lookup(item)
            except OSError as error:
                log.warning("endpoint_lookup_failed", endpoint=item, error=str(error))
            found.update(self._last.get(item, ()))
        return frozenset(found)

    async def _read(self) -> str:
        if not self._endpoints.startswith(FILE_SCHEME):
            return self._endpoints
        return await asyncio.to_thread(Path(self._endpoints.removeprefix(FILE_SCHEME)).read_text)
