"""The reconciler: publishes a new snapshot if the edges or the certificate of the door changed."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import structlog

from penstock.chassis.observability.metrics import Observation
from penstock.chassis.observability.series import CERTIFICATE_EXPIRY
from penstock.routing import series
from penstock.routing.door_certificate import CertificatePair, DoorCertificate
from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import Edge, InvalidEdge
from penstock.routing.resources.build import ProxyConfig, build_snapshot
from penstock.routing.snapshot_cache import SnapshotCache

log = structlog.get_logger()


@dataclass(slots=True)
class Reconciler:
    """Holds the edges and the certificate of the current snapshot. What cannot be read stays in force."""

    proxy: ProxyConfig
    discovery: EdgeDiscovery
    cache: SnapshotCache
    edges: frozenset[Edge]
    door: DoorCertificate | None = None  # None: the door is plaintext
    certificate: CertificatePair | None = None  # of the current snapshot
    discovery_failures: int = 0

    @classmethod
    async def start(
        cls, proxy: ProxyConfig, discovery: EdgeDiscovery, door: DoorCertificate | None = None
    ) -> "Reconciler":
        """Poll once and build the first snapshot. Raises InvalidEdge or OSError if the list cannot be read."""
        edges = frozenset(await discovery.poll())
        log.info("edges_found", edges=_names(edges))
        certificate = door.pair if door else None
        cache = SnapshotCache(build_snapshot(proxy, edges, certificate))
        return cls(proxy, discovery, cache, edges, door, certificate)

    async def run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Poll once, and publish a new snapshot if the edges or the certificate changed."""
        edges = await self._poll_edges()
        certificate = await self.door.poll() if self.door else None
        if (edges, certificate) == (self.edges, self.certificate):
            return
        # 0.1 s for 1,000 edges
        snapshot = await asyncio.to_thread(build_snapshot, self.proxy, edges, certificate)
        if edges != self.edges:
            log.info("edges_changed", added=_names(edges - self.edges), removed=_names(self.edges - edges))
        self.edges, self.certificate = edges, certificate
        self.cache.publish(snapshot)

    async def _poll_edges(self) -> frozenset[Edge]:
        """Return the edges, or if the list cannot be read, those of the current snapshot."""
        try:
            return frozenset(await self.discovery.poll())
        except (InvalidEdge, OSError) as error:
            self.discovery_failures += 1
            log.error("edges_invalid", error=str(error), kept=len(self.edges))  # noqa: TRY400  # a typo needs no traceback
            return self.edges

    def observations(self) -> Iterator[Observation]:
        """Yield the values of the metrics of this process."""
        yield Observation(series.PROXIES, len(self.cache.watchers))
        yield Observation(series.SNAPSHOTS, self.cache.published)
        yield Observation(series.DISCOVERY_FAILURES, self.discovery_failures)
        states = ((each.locality, "draining" if each.is_draining else "serving") for each in self.edges)
        places = Counter((where.region, where.zone, state) for where, state in states)
        for labels, count in places.items():
            yield Observation(series.EDGES, count, labels)
        if self.certificate:
            yield Observation(CERTIFICATE_EXPIRY, self.certificate.expires_at, ("door",))

    def figures(self) -> dict[str, float]:
        return {
            "edges": len(self.edges),
            "edges_draining": sum(edge.is_draining for edge in self.edges),
            "xds_streams": len(self.cache.watchers),
        }


def _names(edges: Iterable[Edge]) -> list[str]:
    return [str(edge.grpc) for edge in sorted(edges)]
