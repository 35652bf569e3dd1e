"""Operators' calls about regions: what routing writes, publishes and answers."""

import grpc
import pytest

from penstock.chassis.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from penstock.routing.edges.discovery import EdgeDiscovery
from penstock.routing.edges.edge_spec import Address
from penstock.routing.reconciler import Reconciler
from penstock.routing.regions.admin import RoutingAdminService
from penstock.routing.regions.planner import RegionPlanner
from penstock.routing.regions.proxy_stats import ProxyStats
from penstock.routing.regions.region_spec import parse_regions
from penstock.routing.regions.state_file import StateFile
from penstock.routing.regions.state_store import RegionStateStore
from penstock.routing.resources.build import ProxyConfig
from penstock.v1 import admin_pb2 as pb

OTHERS = parse_regions(("us=us.example:7443",), own="eu")
STATS = """# TYPE envoy_cluster_membership_healthy gauge
envoy_cluster_membership_healthy{envoy_cluster_name="edge_grpc"} 2
envoy_cluster_membership_healthy{envoy_cluster_name="region_us"} 0
envoy_cluster_upstream_rq_active{envoy_cluster_name="edge_grpc"} 5
envoy_cluster_upstream_rq_active{envoy_cluster_name="edge_http"} 2
"""


class Routing:
    """One replica of routing with the clock `now`."""

    def __init__(self, path):
        self.path, self.now = path, 1_000.0

    async def start(self, path=None):
        proxy = ProxyConfig(
            listen=Address("127.0.0.1", 8080), region="eu", regions=OTHERS, auths=(Address("auth", 7007),)
        )
        store = await RegionStateStore.load(StateFile(self.path)) if self.path else None
        planner = RegionPlanner(own="eu", others=("us",), store=store, return_step_s=10.0, wall_clock=lambda: self.now)
        self.reconciler = await Reconciler.start(proxy, EdgeDiscovery("127.0.0.1:1/127.0.0.1:2"), None, planner)
        self.admin = RoutingAdminService(
            "routing-1", dict, reconciler=self.reconciler, others=OTHERS, read_proxies=self.read_proxies
        )
        return self

    async def read_proxies(self):
        return [ProxyStats.parse(STATS)] * 2

    async def drain(self, name):
        return (await self.admin.DrainRegion(pb.DrainRegionRequest(name=name), None)).region

    async def restore(self, name):
        return (await self.admin.RestoreRegion(pb.RestoreRegionRequest(name=name), None)).region

    async def weight(self, name, percent):
        return (await self.admin.PutRegionWeight(pb.PutRegionWeightRequest(name=name, percent=percent), None)).region


@pytest.fixture
async def routing(tmp_path):
    return await Routing(tmp_path / "regions.json").start()


async def test_regions_are_listed_with_what_all_proxies_report(routing):
    response = await routing.admin.ListRegions(pb.ListRegionsRequest(), None)
    shown = [
        (each.name, each.own, each.door, each.first_percent, each.healthy_proxies, each.proxies, each.open_calls)
        for each in response.regions
    ]
    assert shown == [("eu", True, "", 100.0, 2, 2, 14), ("us", False, "us.example:7443", 0.0, 0, 2, 0)]


async def test_a_drain_is_published_at_once_and_read_by_other_replicas_and_after_a_restart(routing):
    other = await Routing(routing.path).start()
    published = routing.reconciler.cache.published
    region = await routing.drain("eu")
    assert (region.drained, region.share_percent, region.first_percent) == (True, 0, 0.0)
    assert routing.reconciler.cache.published == published + 1
    await other.reconciler.reconcile()
    restarted = await Routing(routing.path).start()
    for each in (other, restarted):
        assert each.reconciler.cache.snapshot.versions == routing.reconciler.cache.snapshot.versions
    assert (await other.restore("eu")).share_percent == 25
    shares = []
    for routing.now in (1_009.0, 1_010.0, 1_020.0, 1_030.0):
        await routing.reconciler.reconcile()
        shares.append(routing.reconciler.plan.share("eu"))
    assert shares == [25, 50, 75, 100]


async def test_a_file_that_breaks_or_disappears_keeps_a_region_drained(routing):
    await routing.drain("us")
    for damage in (lambda: routing.path.write_text("{"), routing.path.unlink):
        damage()
        await routing.reconciler.reconcile()
        assert routing.reconciler.plan.share("us") == 0
    assert (await routing.weight("us", 10)).drained
    assert '"us"' in routing.path.read_text()


async def test_wrong_calls_change_nothing(routing, tmp_path):
    with pytest.raises(NotFound, match="no region"):
        await routing.drain("ap")
    with pytest.raises(InvalidArgument):
        await routing.weight("eu", 10)
    with pytest.raises(InvalidArgument):
        await routing.weight("us", 101)
    assert not routing.path.exists()
    stateless = await Routing(None).start()
    with pytest.raises(FailedPrecondition) as refused:
        await stateless.drain("eu")
    assert refused.value.reason == "REGIONS_STATE_UNSET"
    homeless = await Routing(tmp_path / "none" / "regions.json").start()
    with pytest.raises(Unavailable) as refused:
        await homeless.drain("eu")
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.UNAVAILABLE, "REGIONS_STATE_UNAVAILABLE")
