"""The reconciler: publishes a new snapshot if the edges, the certificate of the door or the plan of regions changed."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import structlog

from penstock.chassis.observability.metrics import Observation
from penstock.chassis.observability.series import CERTIFICATE_EXPIRY
from penstock.chassis.security.certificate_pair import CertificatePair
from penstock.routing import series
from penstock.routing.door_certificate import DoorCertificate
from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import Edge, InvalidEdge
from penstock.routing.regions.planner import RegionPlanner
from penstock.routing.regions.traffic_plan import TrafficPlan
from penstock.routing.resources.build import ProxyConfig, build_snapshot
from penstock.routing.snapshot_cache import SnapshotCache

log = structlog.get_logger()


@dataclass(slots=True)
class Reconciler:
    """Holds what the current snapshot is made of. What cannot be read stays in force."""

    proxy: ProxyConfig
    discovery: EdgeDiscovery
    planner: RegionPlanner
    cache: SnapshotCache
    edges: frozenset[Edge]
    plan: TrafficPlan
    door: DoorCertificate | None = None  # None: the door is plaintext
    certificate: CertificatePair | None = None  # of the current snapshot
    discovery_failures: int = 0
    on_plan: Callable[[TrafficPlan], None] = lambda _: None  # a new plan is in force
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def start(
        cls,
        proxy: ProxyConfig,
        discovery: EdgeDiscovery,
        door: DoorCertificate | None = None,
        planner: RegionPlanner | None = None,
    ) -> "Reconciler":
        """Poll once and build the first snapshot. Raises InvalidEdge or OSError if the list cannot be read."""
        planner = planner or RegionPlanner(own=proxy.region)
        edges = frozenset(await discovery.poll())
        log.info("edges_found", edges=_names(edges))
        certificate, plan = door.pair if door else None, await planner.poll()
        cache = SnapshotCache(build_snapshot(proxy, edges, certificate, plan))
        return cls(proxy, discovery, planner, cache, edges, plan, door, certificate)

    async def run(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Poll once, and publish a new snapshot if something changed."""
        async with self.one_at_a_time:
            edges = await self._poll_edges()
            certificate = await self.door.poll() if self.door else None
            plan = await self.planner.poll()
            if (edges, certificate, plan) == (self.edges, self.certificate, self.plan):
                return
            # 0.1 s for 1,000 edges
            snapshot = await asyncio.to_thread(build_snapshot, self.proxy, edges, certificate, plan)
            if edges != self.edges:
                log.info("edges_changed", added=_names(edges - self.edges), removed=_names(self.edges - edges))
            if plan != self.plan:
                log.info("region_shares_changed", percent=plan.first_shares())
            self.edges, self.certificate, self.plan = edges, certificate, plan
            self.cache.publish(snapshot)
            self.on_plan(plan)

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
        if self.plan.others:
            for region, percent in self.plan.first_shares().items():
                yield Observation(series.REGION_SHARE, percent / 100, (region,))
                yield Observation(series.REGION_DRAINED, self.plan.share(region) == 0, (region,))
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
