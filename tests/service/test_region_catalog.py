"""The catalog of the home region at auth of another region: what arrives there, who may change it, and outages."""

import grpc
import pytest

from auth_server import DEV_KEY, FakeClock, auth_process, edge, rejection_of
from penstock.chassis.errors import error_from_rpc
from penstock.chassis.observability.metrics import REGISTRY
from penstock.chassis.streams import endpoint
from penstock.local_mesh.tcp_relay import CutDirection
from penstock.mesh.v1.admission_pb2 import Admitted, Credential
from penstock.v1 import admin_pb2 as pb
from penstock.v1 import route_pb2
from region_auths import (
    create_key,
    fast,
    follows,
    home_region,
    spending_region,
    two_regions,
    wait_as_time_passes,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("fast")
__all__ = ["fast"]


def has_tenant(found, tenant_id="acme"):
    return found.authorizer.reservations.quota(tenant_id) is not None


async def has_key(found, secret):
    async with edge(found) as stream:
        return isinstance(await stream.reserve(credential=Credential(bearer=secret)), Admitted)


async def test_what_operators_create_at_home_works_in_the_other_region():
    async with two_regions() as (eu, us, _):
        secret = await create_key(eu, requests_per_minute=600)
        await eu.admin.PutPrice(pb.PutPriceRequest(price=pb.Price(model="m", input_nanos=7, output_nanos=9)))
        target = route_pb2.RouteTarget(model="m", weight=1)
        route = route_pb2.Route(name="chat", definition=route_pb2.RouteDefinition(targets=[target]))
        await eu.admin.PutRoute(pb.PutRouteRequest(route=route))
        await wait_until(lambda: len(us.authorizer.keys) == 2 and us.role.quotas._routes.all)
        assert await has_key(us, secret)
        assert us.authorizer.reservations.prices.find("m").output_nanos == 9
        await eu.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme", weight=3.0)))
        await wait_until(lambda: us.authorizer.reservations.quota("acme").tenant.weight == 3.0)
        await eu.admin.DeletePrice(pb.DeletePriceRequest(model="m"))
        await eu.admin.DeleteRoute(pb.DeleteRouteRequest(name="chat"))
        await wait_as_time_passes(us, lambda: not (us.authorizer.reservations.prices.all or us.role.quotas._routes.all))


async def test_a_revoked_key_is_refused_in_the_other_region_and_a_deleted_tenant_is_gone():
    async with two_regions() as (eu, us, _):
        secret = await create_key(eu)
        await wait_until(lambda: len(us.authorizer.keys) == 2)
        key_id = secret.split("_")[1]
        await eu.admin.RevokeKey(pb.RevokeKeyRequest(key_id=key_id))
        await wait_until(lambda: us.authorizer.keys.by_id(key_id).revoked_at)
        async with edge(us) as stream:
            assert rejection_of(await stream.reserve(credential=Credential(bearer=secret))).reason == "KEY_REVOKED"
        await eu.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
        await wait_as_time_passes(us, lambda: not has_tenant(us))


WRITES = {
    "CreateKey": pb.CreateKeyRequest(tenant_id="default"),
    "PutKeyLimits": pb.PutKeyLimitsRequest(key_id="k"),
    "RevokeKey": pb.RevokeKeyRequest(key_id="k"),
    "PutTenant": pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme")),
    "DeleteTenant": pb.DeleteTenantRequest(tenant_id="acme"),
    "PutPrice": pb.PutPriceRequest(price=pb.Price(model="m")),
    "DeletePrice": pb.DeletePriceRequest(model="m"),
    "PutRoute": pb.PutRouteRequest(
        route=route_pb2.Route(
            name="r", definition=route_pb2.RouteDefinition(targets=[route_pb2.RouteTarget(model="m", weight=1)])
        )
    ),
    "RollBackRoute": pb.RollBackRouteRequest(name="r"),
    "DeleteRoute": pb.DeleteRouteRequest(name="r"),
}


async def test_a_region_that_follows_another_one_refuses_changes_of_operators():
    async with auth_process(region="us", home="eu", home_door="127.0.0.1:1") as us:
        for name, request in WRITES.items():
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await getattr(us.admin, name)(request)
            error = error_from_rpc(raised.value)
            assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "NOT_HOME"), name
            assert error.message == "tenants of region us are kept by region eu; send this to auth of eu"
        revoked = await us.admin.RevokeKey(pb.RevokeKeyRequest(key_id=DEV_KEY.split("_")[1]))  # of this region alone
        assert revoked.key.loopback_only


OTHER_HOME = {"home": "ap", "home_door": "127.0.0.1:1", "spending_regions": ()}


@pytest.mark.parametrize(
    ("at_home", "in_region", "reason", "text"),
    [
        ({"spending_regions": ("ap",)}, {}, "REGION_UNKNOWN", "region eu has no spending region 'us'"),
        (OTHER_HOME, {}, "NOT_HOME", "tenants of region eu are kept by region ap; follow that one"),
        ({}, {"pepper": "q" * 32}, "SECRETS_DIFFER", "all regions need the same"),
        ({}, {"mesh_secret": "q" * 32}, "SECRETS_DIFFER", "all regions need the same"),
    ],
)
async def test_a_region_that_may_not_follow_is_refused_with_the_reason(at_home, in_region, reason, text):
    refused = REGISTRY.get_sample_value("penstock_auth_refused_joins_total", {"reason": reason}) or 0
    async with home_region(**at_home) as ([eu], link), spending_region(link, **in_region) as [us]:
        await wait_until(lambda: text in us.role.follower._problem)
        assert REGISTRY.get_sample_value("penstock_auth_refused_joins_total", {"reason": reason}) > refused
        assert not us.role.follower.is_following
        us.clock.now += 400
        assert us.figures["home_unfollowed"] >= 400
        assert eu.figures.get("follower_streams", 0) == 0


async def test_a_region_goes_on_while_its_home_is_away_and_catches_up(tmp_path):
    clock = FakeClock()
    async with home_region(tmp_path / "eu.sqlite", clock=clock) as ([eu], link):
        secret = await create_key(eu)
        async with spending_region(link, tmp_path / "us.sqlite", clock=clock) as [us]:
            await follows(us)
            link.cut(CutDirection.BOTH)
            await wait_until(lambda: not us.role.follower.is_following)
            assert await has_key(us, secret)
            other = await create_key(eu, "late")
        async with spending_region(link, tmp_path / "us.sqlite", clock=clock) as [us]:  # restarted, without its home
            assert await has_key(us, secret)
            link.restore()
            await follows(us)
            await wait_until(lambda: has_tenant(us, "late"))
            assert await has_key(us, other)


async def test_a_region_with_tenants_of_its_own_does_not_follow_until_its_home_has_them(tmp_path):
    clock, path = FakeClock(), tmp_path / "us.sqlite"
    async with auth_process(path, clock=clock, region="us") as us:
        await create_key(us, "own")
    async with home_region(tmp_path / "eu.sqlite", clock=clock) as ([eu], link):
        await create_key(eu, "acme")
        async with spending_region(link, path, clock=clock) as [us]:
            await wait_until(lambda: us.figures["home_catalog_unknown"] == 2)
            assert not us.role.follower.is_following
            assert has_tenant(us, "own")
            assert not has_tenant(us, "acme")
        async with spending_region(link, path, clock=clock, replace_catalog=True) as [us]:
            await follows(us)
            await wait_as_time_passes(us, lambda: has_tenant(us, "acme") and not has_tenant(us, "own"))
        async with spending_region(link, path, clock=clock) as [us]:  # it has followed: later deletions are its home's
            await eu.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
            await follows(us)
            await wait_as_time_passes(us, lambda: not has_tenant(us, "acme"))
        async with auth_process(path, clock=clock, region="us") as us:  # its own home again
            await create_key(us, "again")
        async with spending_region(link, path, clock=clock) as [us]:
            await wait_until(lambda: us.figures["home_catalog_unknown"] == 2)


async def test_a_link_that_is_cut_does_not_delay_the_end_of_a_process(monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_SILENT_TICKS", 10**6)  # a silent stream would not end by itself
    async with two_regions() as (eu, _, link):
        link.cut(CutDirection.BOTH)
        await eu.role.quotas.drain()
        await wait_until(lambda: eu.role.figures["follower_streams"] == 0)
        link.restore()
