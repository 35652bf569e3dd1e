"""Administration of keys and tenants over a real server."""

import math
import sqlite3
from contextlib import closing

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from auth_server import (
    FakeClock,
    auth_process,
    edge,
    full_disk,
    raise_disk_full,
    rejection_of,
    tenant_use,
    tenant_with_key,
)
from penstock.auth.store.sqlite import sql
from penstock.chassis.errors import error_from_rpc
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_STANDARD

DELETE_ACME = pb.DeleteTenantRequest(tenant_id="acme")


async def test_a_revoked_key_is_rejected_at_once():
    async with auth_process() as found, edge(found) as stream:
        made = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default", display_name="for Anna"))
        credential = Credential(bearer=made.secret)
        assert (await stream.identify(credential)).identity.key_id == made.key.key_id
        revoked = (await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))).key
        assert revoked.HasField("revoke_time")
        assert rejection_of(await stream.identify(credential)).reason == "KEY_REVOKED"
        again = (await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.key_id))).key
        assert again == revoked


async def test_a_key_with_a_ttl_expires():
    async with auth_process() as found, edge(found) as stream:
        request = pb.CreateKeyRequest(tenant_id="default")
        request.ttl.FromSeconds(60)
        credential = Credential(bearer=(await found.admin.CreateKey(request)).secret)
        assert (await stream.identify(credential)).identity.tenant_id == "default"
        found.clock.now += 60.0
        assert rejection_of(await stream.identify(credential)).reason == "KEY_EXPIRED"


async def test_keys_are_listed_without_their_secrets():
    async with auth_process() as found:
        made = await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default", display_name="for Anna"))
        listed = (await found.admin.ListKeys(pb.ListKeysRequest())).keys
        assert {(each.key_id, each.loopback_only) for each in listed} == {("dev", True), (made.key.key_id, False)}
        assert made.secret.split("_")[2] not in str(listed)
        assert list((await found.admin.ListKeys(pb.ListKeysRequest(tenant_id="unknown"))).keys) == []


async def test_tenants_are_stored_with_their_defaults_filled_in():
    async with auth_process() as found:
        put = await found.admin.PutTenant(pb.PutTenantRequest(tenant=pb.Tenant(tenant_id="acme")))
        assert (put.tenant.priority, put.tenant.weight) == (PRIORITY_STANDARD, 1.0)
        listed = await found.admin.ListTenants(pb.ListTenantsRequest())
        assert [each.tenant_id for each in listed.tenants] == ["acme", "default"]
        assert [each.tenant_id for each in listed.uses] == ["acme", "default"]


@pytest.mark.parametrize(
    ("tenant", "field_name"),
    [
        (pb.Tenant(tenant_id="Acme"), "tenant.tenant_id"),
        (pb.Tenant(tenant_id=""), "tenant.tenant_id"),
        (pb.Tenant(tenant_id="a" * 64), "tenant.tenant_id"),
        (pb.Tenant(tenant_id="acme", weight=-1.0), "tenant.weight"),
        (pb.Tenant(tenant_id="acme", weight=math.nan), "tenant.weight"),
        (pb.Tenant(tenant_id="acme", weight=1_001.0), "tenant.weight"),
        (pb.Tenant(tenant_id="acme", priority=9), "tenant.priority"),
        (pb.Tenant(tenant_id="acme", tokens_per_minute=2**63), "tenant.tokens_per_minute"),
    ],
)
async def test_an_invalid_tenant_is_rejected_with_the_field(tenant, field_name):
    async with auth_process() as found:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await found.admin.PutTenant(pb.PutTenantRequest(tenant=tenant))
        error = error_from_rpc(failure.value)
        assert [each.field for each in error.field_violations] == [field_name]


@pytest.mark.parametrize(
    ("call", "request_message", "reason"),
    [
        ("CreateKey", pb.CreateKeyRequest(tenant_id="unknown"), "TENANT_UNKNOWN"),
        ("CreateKey", pb.CreateKeyRequest(tenant_id="default", display_name="ä" * 65), "INVALID_ARGUMENT"),
        ("CreateKey", pb.CreateKeyRequest(tenant_id="default", ttl=Duration(seconds=-1)), "INVALID_ARGUMENT"),
        ("CreateKey", pb.CreateKeyRequest(tenant_id="default", ttl=Duration(seconds=2**63 - 1)), "INVALID_ARGUMENT"),
        ("DeleteTenant", pb.DeleteTenantRequest(tenant_id="nobody"), "TENANT_UNKNOWN"),
        ("DeleteTenant", pb.DeleteTenantRequest(tenant_id="default"), "TENANT_REQUIRED"),
        ("RevokeKey", pb.RevokeKeyRequest(key_id="unknown"), "KEY_UNKNOWN"),
    ],
)
async def test_invalid_admin_requests_are_rejected(call, request_message, reason):
    async with auth_process() as found:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await getattr(found.admin, call)(request_message)
        assert error_from_rpc(failure.value).reason == reason


async def test_a_deleted_tenant_loses_its_keys_and_keeps_its_usage(tmp_path):
    path = tmp_path / "auth.sqlite"
    async with auth_process(path) as found, edge(found) as stream:
        credential = await tenant_with_key(found)
        admitted = await stream.reserve(credential=credential)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await found.admin.DeleteTenant(DELETE_ACME)
        assert error_from_rpc(failure.value).reason == "TENANT_BUSY"
        await stream.settle(admitted.reservation_id)
        assert (await found.admin.DeleteTenant(DELETE_ACME)).deleted_keys == 1
        assert rejection_of(await stream.reserve(credential=credential)).reason == "KEY_UNKNOWN"
        listed = await found.admin.ListTenants(pb.ListTenantsRequest())
        assert [each.tenant_id for each in listed.tenants] == ["default"]
    async with auth_process(path) as found, edge(found) as stream:
        assert rejection_of(await stream.reserve(credential=credential)).reason == "KEY_UNKNOWN"
        again = await tenant_with_key(found)
        assert (await tenant_use(found, "acme")).requests == 0
        assert (await stream.reserve(credential=again)).identity.tenant_id == "acme"
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT tenant_id, requests, output_tokens FROM usage").fetchall() == [("acme", 1, 7)]


async def test_a_lost_reservation_of_a_deleted_tenant_is_settled_without_a_charge(tmp_path):
    path, clock = tmp_path / "auth.sqlite", FakeClock()
    async with auth_process(path, clock=clock) as found, edge(found) as stream:
        admitted = await stream.reserve(credential=await tenant_with_key(found))
        found.service._expire_edge("edge-1", clock())
        await found.admin.DeleteTenant(DELETE_ACME)
        assert (await stream.settle(admitted.reservation_id)).reservation_id == admitted.reservation_id
    async with auth_process(path, clock=clock) as found, edge(found) as stream:
        assert (await stream.settle(admitted.reservation_id)).reservation_id == admitted.reservation_id


async def test_a_tenant_whose_deletion_cannot_be_stored_keeps_its_keys(monkeypatch):
    async with auth_process() as found, edge(found) as stream:
        credential = await tenant_with_key(found)
        with full_disk(monkeypatch), pytest.raises(grpc.aio.AioRpcError) as failure:
            await found.admin.DeleteTenant(DELETE_ACME)
        assert error_from_rpc(failure.value).reason == "STORE_UNAVAILABLE"
        assert (await stream.receive()).is_unavailable
        assert not (await stream.receive()).is_unavailable
        assert (await stream.reserve(credential=credential)).identity.tenant_id == "acme"


async def test_keys_that_ended_before_the_retention_are_deleted_with_a_new_key(tmp_path):
    path, clock = tmp_path / "auth.sqlite", FakeClock()

    async def create(found, **more):
        return (await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default", **more))).key.key_id

    async def listed(found):
        return [each.key_id for each in (await found.admin.ListKeys(pb.ListKeysRequest())).keys if each.key_id != "dev"]

    async with auth_process(path, clock=clock, ledger_retention=1_000.0) as found:
        revoked, expiring, kept = (
            await create(found),
            await create(found, ttl=Duration(seconds=10)),
            await create(found),
        )
        await found.admin.RevokeKey(pb.RevokeKeyRequest(key_id=revoked))
        clock.now += 1_000.0
        second = await create(found)
        assert sorted(await listed(found)) == sorted([revoked, expiring, kept, second])
        clock.now += 5.0
        third = await create(found)
        assert sorted(await listed(found)) == sorted([expiring, kept, second, third])
    async with auth_process(path, clock=clock) as found:
        assert sorted(await listed(found)) == sorted([expiring, kept, second, third])


async def test_a_key_that_cannot_be_stored_is_not_returned(monkeypatch):
    async with auth_process() as found:
        monkeypatch.setattr(sql, "apply", raise_disk_full)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await found.admin.CreateKey(pb.CreateKeyRequest(tenant_id="default"))
        assert error_from_rpc(failure.value).reason == "STORE_UNAVAILABLE"
        assert found.figures["keys"] == 1
