"""The Admin service of routing: lists, drains, restores and weights regions."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from penstock.chassis.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from penstock.chassis.server.admin import AdminService, Figures
from penstock.routing.regions.planner import RegionPlanner
from penstock.routing.regions.proxy_stats import ProxyStats
from penstock.routing.regions.region_spec import Region
from penstock.routing.regions.region_state import RegionState
from penstock.routing.regions.traffic_plan import TrafficPlan
from penstock.v1 import admin_pb2 as pb
from penstock.v1 import region_pb2

OWN_CLUSTERS = ("edge_grpc", "edge_http")

ReadProxies = Callable[[], Awaitable[list[ProxyStats]]]


class RegionPlan(Protocol):
    """Holds the plan that proxies follow."""

    @property
    def plan(self) -> TrafficPlan: ...

    @property
    def planner(self) -> RegionPlanner: ...

    async def reconcile(self) -> None: ...


class RoutingAdminService(AdminService):
    def __init__(
        self,
        instance_id: str,
        figures: Figures,
        *,
        reconciler: RegionPlan,
        others: tuple[Region, ...],
        read_proxies: ReadProxies,
    ) -> None:
        super().__init__("routing", instance_id, figures)
        self._reconciler = reconciler
        self._doors = {each.name: str(each.door) for each in others}
        self._read_proxies = read_proxies

    async def ListRegions(self, request: pb.ListRegionsRequest, context: Any) -> pb.ListRegionsResponse:
        proxies = await self._read_proxies()
        plan = self._reconciler.plan
        return pb.ListRegionsResponse(regions=[self._region(name, plan, proxies) for name in (plan.own, *plan.others)])

    async def DrainRegion(self, request: pb.DrainRegionRequest, context: Any) -> pb.DrainRegionResponse:
        region = await self._change(request.name, lambda state: state.with_drained(request.name))
        return pb.DrainRegionResponse(region=region)

    async def RestoreRegion(self, request: pb.RestoreRegionRequest, context: Any) -> pb.RestoreRegionResponse:
        now = self._reconciler.planner.wall_clock()
        region = await self._change(request.name, lambda state: state.with_restored(request.name, now))
        return pb.RestoreRegionResponse(region=region)

    async def PutRegionWeight(self, request: pb.PutRegionWeightRequest, context: Any) -> pb.PutRegionWeightResponse:
        if request.name == self._reconciler.plan.own:
            text = f"{request.name} is the own region, which gets the rest; give weights to other regions"
            raise InvalidArgument(text, field="name")
        region = await self._change(request.name, lambda state: self._weighted(state, request.name, request.percent))
        return pb.PutRegionWeightResponse(region=region)

    def _weighted(self, state: RegionState, name: str, percent: int) -> RegionState:
        try:
            return state.with_weight(name, percent)
        except ValueError as error:
            raise InvalidArgument(str(error), field="percent") from error

    async def _change(self, name: str, changed: Callable[[RegionState], RegionState]) -> region_pb2.Region:
        """Write the changed state, publish the plan, and return the region. Raises the errors of the RPCs."""
        planner = self._reconciler.planner
        if name not in (planner.own, *planner.others) or not planner.others:
            raise NotFound(f"there is no region {name[:64]!r}; see `penstock regions list`", reason="REGION_UNKNOWN")
        if planner.store is None:
            text = "routing has no place for the state of regions; set PENSTOCK_ROUTING_REGIONS_STATE"
            raise FailedPrecondition(text, reason="REGIONS_STATE_UNSET")
        try:
            await planner.store.change(changed)
        except OSError as error:
            text = f"PENSTOCK_ROUTING_REGIONS_STATE cannot be written: {error}"
            raise Unavailable(text, reason="REGIONS_STATE_UNAVAILABLE") from error
        await self._reconciler.reconcile()
        return self._region(name, self._reconciler.plan, await self._read_proxies())

    def _region(self, name: str, plan: TrafficPlan, proxies: list[ProxyStats]) -> region_pb2.Region:
        is_own = name == plan.own
        clusters = OWN_CLUSTERS if is_own else (f"region_{name}",)
        return region_pb2.Region(
            name=name,
            own=is_own,
            door=self._doors.get(name, ""),
            drained=plan.share(name) == 0,
            share_percent=plan.share(name),
            weight_percent=plan.weights.get(name, 0),
            first_percent=plan.first_shares()[name],
            proxies=len(proxies),
            healthy_proxies=sum(each.healthy_hosts.get(clusters[0], 0) > 0 for each in proxies),
            open_calls=sum(each.open_calls.get(cluster, 0) for each in proxies for cluster in clusters),
        )
