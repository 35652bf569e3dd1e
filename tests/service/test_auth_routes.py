"""Routes of models at a real auth: changes by operators, frames to edges, and the store."""

import grpc
import pytest

from auth_server import auth_process, edge
from penstock.auth.models.routes import Affinity, Route, RouteDefinition, RouteTarget
from penstock.auth.store.opening import opened_store
from penstock.auth.store.store import DeleteRoute, DeleteTenant, PutRoute, PutTenant
from penstock.chassis.errors import error_from_rpc
from penstock.v1 import admin_pb2 as pb
from penstock.v1.route_pb2 import Route as RouteMessage
from penstock.v1.route_pb2 import RouteDefinition as DefinitionMessage
from penstock.v1.route_pb2 import RouteTarget as TargetMessage
from store_changes import ACME_TENANT, kept, stored_state

SPLIT = RouteDefinition((RouteTarget("a", 95), RouteTarget("b", 5)), Affinity.KEY, ("c",))
ALONE = RouteDefinition((RouteTarget("a", 1),))


def route(*models, name="gpt-4o", tenant_id="", revision=0):
    targets = [TargetMessage(model=model, weight=1) for model in models]
    return RouteMessage(
        name=name, tenant_id=tenant_id, definition=DefinitionMessage(targets=targets), revision=revision
    )


async def put(found, *models, **more):
    return (await found.admin.PutRoute(pb.PutRouteRequest(route=route(*models, **more)))).route


def models_of(frame):
    """Return the targets of each route in a frame."""
    return {(each.name, each.tenant_id): [target.model for target in each.definition.targets] for each in frame.routes}


async def synchronized(stream):
    """Receive all frames that auth has sent so far."""
    await stream.identify(stream.credential)


async def test_an_edge_receives_all_routes_at_its_start_and_at_each_change():
    async with auth_process() as found, edge(found) as stream:
        await synchronized(stream)
        assert [models_of(each) for each in stream.routes] == [{}]
        await put(found, "a")
        await put(found, "b", tenant_id="default")
        await put(found, "c", "d")
        await found.admin.RollBackRoute(pb.RollBackRouteRequest(name="gpt-4o"))
        await found.admin.DeleteRoute(pb.DeleteRouteRequest(name="gpt-4o", tenant_id="default"))
        await synchronized(stream)
        both = {("gpt-4o", ""): ["a"], ("gpt-4o", "default"): ["b"]}
        assert [models_of(each) for each in stream.routes[1:]] == [
            {("gpt-4o", ""): ["a"]},
            both,
            {**both, ("gpt-4o", ""): ["c", "d"]},
            both,
            {("gpt-4o", ""): ["a"]},
        ]
        async with edge(found, "edge-2") as later:
            await synchronized(later)
            assert later.routes == stream.routes[-1:]


async def test_revisions_are_counted_and_outdated_changes_rejected():
    async with auth_process() as found:
        assert (await put(found, "a")).revision == 1
        assert (await put(found, "b", revision=1)).revision == 2
        with pytest.raises(grpc.aio.AioRpcError) as rejection:
            await put(found, "c", revision=1)
        assert error_from_rpc(rejection.value).reason == "ROUTE_CHANGED"
        [listed] = (await found.admin.ListRoutes(pb.ListRoutesRequest())).routes
        assert [each.model for each in listed.definition.targets] == ["b"]
        assert [each.model for each in listed.former.targets] == ["a"]


async def test_routes_survive_a_restart_and_end_with_their_tenant(tmp_path):
    path = tmp_path / "auth.sqlite"
    async with auth_process(path) as found:
        await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme")))
        await put(found, "a")
        await put(found, "b", tenant_id="acme")
    async with auth_process(path) as found, edge(found) as stream:
        await synchronized(stream)
        assert models_of(stream.routes[0]) == {("gpt-4o", ""): ["a"], ("gpt-4o", "acme"): ["b"]}
        await found.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
        await synchronized(stream)
        assert models_of(stream.routes[-1]) == {("gpt-4o", ""): ["a"]}
    async with auth_process(path) as found:
        assert [each.tenant_id for each in (await found.admin.ListRoutes(pb.ListRoutesRequest())).routes] == [""]


async def test_both_stores_keep_routes(stored):
    routes = [Route("gpt-4o", "", 2, SPLIT, ALONE), Route("gpt-4o", "acme", 1, ALONE), Route("old", "", 1, ALONE)]
    async with opened_store(stored.location) as (store, state):
        assert state.routes == []
        await kept(store, PutTenant(ACME_TENANT))
        for each in (Route("gpt-4o", "", 1, ALONE), *routes):
            await kept(store, PutRoute(each))
        await kept(store, DeleteRoute("old", ""))
    assert sorted((await stored_state(stored.location)).routes, key=lambda each: each.key) == routes[:2]
    async with opened_store(stored.location) as (store, _):
        await kept(store, DeleteTenant("acme", 2.0))
    assert (await stored_state(stored.location)).routes == routes[:1]
