"""The reconciler: polls edge discovery and publishes a new snapshot if the edges changed."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import Edge, InvalidEdge
from penstock.routing.resources.build import ProxyConfig, build_snapshot
from penstock.routing.snapshot_cache import SnapshotCache

log = structlog.get_logger()


@dataclass(slots=True)
class Reconciler:
    """Holds the edges of the current snapshot. If the list of edges cannot be read, they stay in force."""

    proxy: ProxyConfig
    discovery: EdgeDiscovery
    cache: SnapshotCache
    edges: frozenset[Edge]

    @classmethod
    async def start(cls, proxy: ProxyConfig, discovery: EdgeDiscovery) -> "Reconciler":
        """Poll once and build the first snapshot. Raises InvalidEdge or OSError if the list cannot be read."""
        edges = frozenset(await discovery.poll())
        log.info("edges_found", edges=_names(edges))
        return cls(proxy, discovery, SnapshotCache(build_snapshot(proxy, edges)), edges)

    async def run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.reconcile()
            except (InvalidEdge, OSError) as error:
                log.error("edges_invalid", error=str(error), kept=len(self.edges))  # noqa: TRY400  # a typo needs no traceback

    async def reconcile(self) -> None:
        """Poll once, and publish a new snapshot if the edges changed."""
        edges = frozenset(await self.discovery.poll())
        if edges == self.edges:
            return
        snapshot = await asyncio.to_thread(build_snapshot, self.proxy, edges)  # 0.1 s for 1,000 edges
        log.info("edges_changed", added=_names(edges - self.edges), removed=_names(self.edges - edges))
        self.edges = edges
        self.cache.publish(snapshot)

    def figures(self) -> dict[str, float]:
        return {
            "edges": len(self.edges),
            "edges_draining": sum(edge.is_draining for edge in self.edges),
            "xds_streams": len(self.cache.watchers),
        }


def _names(edges: Iterable[Edge]) -> list[str]:
    return [str(edge.grpc) for edge in sorted(edges)]
