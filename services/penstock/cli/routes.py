"""`penstock models`: changes of routes, and their texts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.json_format import MessageToDict

from penstock.bench.tables import new_table
from penstock.chassis.errors import InvalidArgument, NotFound
from penstock.cli.admin import AdminTarget
from penstock.cli.tables import stdout_console
from penstock.v1 import admin_pb2 as pb
from penstock.v1.route_pb2 import (
    ROUTE_AFFINITY_CONVERSATION,
    ROUTE_AFFINITY_KEY,
    ROUTE_AFFINITY_UNSPECIFIED,
    Route,
    RouteDefinition,
    RouteHold,
    RouteTarget,
)

if TYPE_CHECKING:
    from penstock.v1.admin_pb2_grpc import AdminAsyncStub

AFFINITIES = {
    "none": ROUTE_AFFINITY_UNSPECIFIED,
    "key": ROUTE_AFFINITY_KEY,
    "conversation": ROUTE_AFFINITY_CONVERSATION,
}
DEFAULT_HOLD = RouteHold(seconds=300, requests=1_000, load_seconds=120)
AFFINITY_NAMES = {value: name for name, value in AFFINITIES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChange:
    """New targets of a route, and the parts of its definition that change with them."""

    name: str
    tenant_id: str
    weights: tuple[tuple[str, int], ...]  # model and weight
    fallbacks: tuple[str, ...] = ()  # empty: as before, or none
    keeps_fallbacks: bool = True
    affinity: str | None = None  # None: as before
    mirror: tuple[str, float] | None = None  # model and share; None: as before, or none
    keeps_mirror: bool = True
    hold: RouteHold | None = None  # parts that are not 0 replace those of before
    keeps_hold: bool = True

    def applied_to(self, stored: Route | None) -> Route:
        """Return the route with this change. It keeps the revision of `stored`, so that auth rejects a lost update."""
        route = Route(name=self.name, tenant_id=self.tenant_id)
        if stored:
            route.CopyFrom(stored)
            route.ClearField("former")
        definition = route.definition
        definition.ClearField("targets")
        definition.targets.extend(RouteTarget(model=model, weight=weight) for model, weight in self.weights)
        if self.fallbacks or not self.keeps_fallbacks:
            definition.fallbacks[:] = self.fallbacks
        else:  # a former fallback may be a target now
            served = {model for model, _ in self.weights}
            definition.fallbacks[:] = [each for each in definition.fallbacks if each not in served]
        if self.mirror or not self.keeps_mirror:
            definition.mirror, definition.mirror_share = self.mirror or ("", 0.0)
        if self.affinity is not None:
            definition.affinity = AFFINITIES[self.affinity]
        if not self.keeps_hold:
            definition.ClearField("hold")
        if self.hold:
            if not definition.HasField("hold"):
                definition.hold.CopyFrom(DEFAULT_HOLD)
            definition.hold.MergeFrom(self.hold)
        return route


async def put_route(target: AdminTarget, change: RouteChange) -> None:
    async with target.stub() as admin:
        stored = await _find(target, admin, change.name, change.tenant_id)
        request = pb.PutRouteRequest(route=change.applied_to(stored))
        response = await admin.PutRoute(request, metadata=target.metadata)
    _show(target, [response.route])


async def promote(target: AdminTarget, name: str, tenant_id: str, model: str) -> None:
    """Raises NotFound for an unknown route, and InvalidArgument for a model that is none of its targets."""
    async with target.stub() as admin:
        stored = await _find(target, admin, name, tenant_id)
        if stored is None:
            raise NotFound(f"there is no route {name!r}; see `penstock models list`", reason="ROUTE_UNKNOWN")
        models = [each.model for each in stored.definition.targets]
        if model not in models:
            raise InvalidArgument(f"{model!r} is no target of {name!r}; its targets are {', '.join(models)}")
        change = RouteChange(name=name, tenant_id=tenant_id, weights=((model, 1),))
        request = pb.PutRouteRequest(route=change.applied_to(stored))
        response = await admin.PutRoute(request, metadata=target.metadata)
    _show(target, [response.route])


async def roll_back(target: AdminTarget, name: str, tenant_id: str) -> None:
    async with target.stub() as admin:
        request = pb.RollBackRouteRequest(name=name, tenant_id=tenant_id)
        response = await admin.RollBackRoute(request, metadata=target.metadata)
    _show(target, [response.route])


async def delete_route(target: AdminTarget, name: str, tenant_id: str) -> None:
    async with target.stub() as admin:
        request = pb.DeleteRouteRequest(name=name, tenant_id=tenant_id)
        await admin.DeleteRoute(request, metadata=target.metadata)
    if target.as_json:
        stdout_console.print_json(data={"name": name, "tenant_id": tenant_id})
        return
    stdout_console.print(f"the route {name} is deleted", markup=False)


async def list_routes(target: AdminTarget) -> None:
    async with target.stub() as admin:
        response = await admin.ListRoutes(pb.ListRoutesRequest(), metadata=target.metadata)
    _show(target, list(response.routes))


async def _find(target: AdminTarget, admin: "AdminAsyncStub", name: str, tenant_id: str) -> Route | None:
    response = await admin.ListRoutes(pb.ListRoutesRequest(), metadata=target.metadata)
    return next((each for each in response.routes if (each.name, each.tenant_id) == (name, tenant_id)), None)


def _show(target: AdminTarget, routes: list[Route]) -> None:
    if target.as_json:
        stdout_console.print_json(data=[MessageToDict(each) for each in routes])
        return
    table = new_table(
        "route", "tenant", "targets", "sticky", "fallbacks", "mirror", "hold", "before", numbers=("revision",)
    )
    for each in routes:
        definition = each.definition
        affinity = AFFINITY_NAMES.get(definition.affinity, "none")
        before = targets_text(each.former) if each.HasField("former") else "-"
        fallbacks = ", ".join(definition.fallbacks) or "-"
        mirror = f"{definition.mirror} {definition.mirror_share:.3%}" if definition.mirror else "-"
        targets = targets_text(definition)
        row = (each.name, each.tenant_id or "all", targets, affinity, fallbacks, mirror, hold_text(definition), before)
        table.add_row(*row, str(each.revision))
    stdout_console.print(table)


def hold_text(definition: RouteDefinition) -> str:
    """Return how requests wait without a worker."""
    hold = definition.hold
    return f"{hold.requests} for {hold.seconds} s, load {hold.load_seconds} s" if definition.HasField("hold") else "-"


def targets_text(definition: RouteDefinition) -> str:
    """Return the models of a definition with their shares of the requests."""
    total = sum(each.weight for each in definition.targets) or 1
    if len(definition.targets) == 1:
        return definition.targets[0].model
    return ", ".join(f"{each.model} {each.weight / total:.3%}" for each in definition.targets)
