"""Discovery of edges: resolves an operator's list of names through DNS. Holds no policy."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from penstock.chassis.channels import resolve
from penstock.routing.edges.edge_spec import Address, Edge, EdgeSpec, parse_specs

FILE_SCHEME = "file://"
Lookup = Callable[[str], Awaitable[list[str]]]

log = structlog.get_logger()


@dataclass(slots=True)
class EdgeDiscovery:
    """Resolves a list of edges at each poll. A file with the list is read again each time, so that it may change.

    A name that no longer resolves keeps its last addresses, because the proxies' health checks are better evidence than
    a broken resolver.
    """

    edges: str  # the list, or `file:///path` of one
    lookup: Lookup = resolve
    last_hosts: dict[Address, list[str]] = field(default_factory=dict)

    async def poll(self) -> tuple[Edge, ...]:
        """Return the current edges, each address once. Raises InvalidEdge or OSError if the list cannot be read."""
        by_address: dict[Address, Edge] = {}
        for spec in parse_specs(await self._read_edges()):
            for edge in await self._resolve(spec):
                by_address.setdefault(edge.grpc, edge)
        return tuple(sorted(by_address.values()))

    async def _read_edges(self) -> str:
        if not self.edges.startswith(FILE_SCHEME):
            return self.edges
        return await asyncio.to_thread(Path(self.edges.removeprefix(FILE_SCHEME)).read_text)

    async def _resolve(self, spec: EdgeSpec) -> Iterator[Edge]:
        grpc = await self._hosts(spec.template.grpc)
        if spec.is_dns_set:
            return _with_hosts(spec.template, zip(grpc, grpc, strict=True))
        http = await self._hosts(spec.template.http)
        return _with_hosts(spec.template, zip(grpc[:1], http[:1], strict=False))

    async def _hosts(self, address: Address) -> list[str]:
        if address.is_literal:
            return [address.host]
        kept = self.last_hosts.get(address, [])
        try:
            found = await self.lookup(f"dns:///{address}")
        except OSError as error:
            log.warning("edge_name_unresolved", host=address.host, error=str(error), kept=len(kept))
            return kept
        hosts = {Address.parse(text).host for text in found}
        self.last_hosts[address] = sorted(hosts, key=lambda host: (":" in host, host))  # IPv4 first
        return self.last_hosts[address]


def _with_hosts(template: Edge, pairs: Iterator[tuple[str, str]]) -> Iterator[Edge]:
    for grpc, http in pairs:
        yield replace(template, grpc=Address(grpc, template.grpc.port), http=Address(http, template.http.port))
