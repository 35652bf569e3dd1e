"""Residency at a real auth: a tenant is served in the regions that it allows, and edges and proxies receive them."""

import pytest

from auth_server import auth_process, edge, rejection_of, tenant_with_key
from penstock.mesh.regions_header import HEADER
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_BATCH

REFUSAL = (
    "tenant acme allows the regions us, ap, and this is region eu: send the request to one of them, or ask for"
    " `penstock tenants put`"
)


async def allow(found, *regions):
    tenant = pb.Tenant(tenant_id="acme", allowed_regions=regions)
    await found.admin.PutTenant(pb.PutTenantRequest(tenant=tenant))


async def test_a_tenant_of_other_regions_is_refused_before_and_at_its_reservation():
    async with auth_process(region="eu") as found, edge(found) as stream:
        key = await tenant_with_key(found, allowed_regions=["us", "ap"])
        for answer in (
            await stream.identify(key),
            await stream.identify(key, delegates=True),
            await stream.reserve(credential=key),
        ):
            error = rejection_of(answer)
            assert (error.code.name, error.reason, error.message) == (
                "PERMISSION_DENIED",
                "REGION_NOT_ALLOWED",
                REFUSAL,
            )
            assert error.retry_after is None
        assert found.figures["reservations"] == 0
        assert found.figures["failed_authentications"] == 0


async def test_an_allowed_tenant_is_served_with_its_regions():
    async with auth_process(region="eu") as found, edge(found) as stream:
        key = await tenant_with_key(found, allowed_regions=["us", "eu", "us"])
        assert list((await stream.identify(key)).identity.allowed_regions) == ["us", "eu"]
        assert list((await stream.reserve(credential=key)).identity.allowed_regions) == ["us", "eu"]
        own = await stream.reserve("request-2")
        assert not own.identity.allowed_regions


async def test_a_process_without_a_region_serves_no_tenant_that_names_regions():
    async with auth_process() as found, edge(found) as stream:
        key = await tenant_with_key(found, allowed_regions=["eu"])
        error = rejection_of(await stream.identify(key))
        assert error.reason == "REGION_NOT_ALLOWED"
        assert "the region of this process is not set (PENSTOCK_REGION)" in error.message


async def test_the_lines_of_a_batch_are_refused_once_the_regions_of_its_tenant_have_changed():
    async with auth_process(region="eu") as found, edge(found) as stream:
        key = await tenant_with_key(found, allowed_regions=["eu"])
        delegated = await stream.delegate(key)
        admitted = await stream.reserve(credential=delegated, priority=PRIORITY_BATCH)
        assert list(admitted.identity.allowed_regions) == ["eu"]
        await allow(found, "us")
        error = rejection_of(await stream.reserve("request-2", credential=delegated, priority=PRIORITY_BATCH))
        assert error.reason == "REGION_NOT_ALLOWED"


async def test_a_proxy_receives_the_regions_or_the_refusal():
    async with auth_process(region="eu") as found:
        key = (await tenant_with_key(found)).bearer
        assert (await found.check(key)).headers[HEADER] == "*"
        await allow(found, "eu", "us")
        assert (await found.check(key)).headers[HEADER] == "eu,us"
        await allow(found, "us", "ap")
        refused = await found.check(key)
        assert (refused.status_code, refused.headers["x-penstock-reason"]) == (403, "REGION_NOT_ALLOWED")
        assert HEADER not in refused.headers
        assert refused.json()["error"] == {
            "message": REFUSAL,
            "type": "permission_error",
            "code": "region_not_allowed",
            "param": None,
        }
        over_grpc = await found.check(key, content_type="application/grpc")
        assert (over_grpc.headers["grpc-status"], over_grpc.text) == ("7", REFUSAL)


async def test_edges_receive_a_digest_at_each_change_of_regions_and_of_nothing_else():
    async with auth_process(region="eu") as found, edge(found) as stream:
        await stream.identify(stream.credential)
        assert stream.residency == [b""]
        await tenant_with_key(found, allowed_regions=["eu"])
        await allow(found, "eu")
        tenant = pb.Tenant(tenant_id="acme", allowed_regions=["eu"], requests_per_minute=5)
        await found.admin.PutTenant(pb.PutTenantRequest(tenant=tenant))
        await allow(found, "eu", "us")
        await found.admin.DeleteTenant(pb.DeleteTenantRequest(tenant_id="acme"))
        await stream.identify(stream.credential)
        assert len(stream.residency) == 4
        assert len(set(stream.residency)) == 3
        assert stream.residency[-1] == b""


async def test_regions_and_their_digest_are_kept_over_a_restart(tmp_path):
    path, digests = tmp_path / "auth.sqlite", []
    for _ in range(2):
        async with auth_process(path, region="us") as found, edge(found) as stream:
            if not digests:
                key = await tenant_with_key(found, allowed_regions=["eu"])
            assert rejection_of(await stream.identify(Credential(bearer=key.bearer))).reason == "REGION_NOT_ALLOWED"
            digests.append(stream.residency[-1])
    assert digests[0] == digests[1] != b""


@pytest.mark.parametrize("allowed", [["eu"], ["us"]])
async def test_the_use_of_a_grant_is_recorded_whatever_the_tenant_allows_now(allowed):
    async with auth_process(region="eu") as found, edge(found) as stream:
        key = await tenant_with_key(found)
        granted = await stream.reserve(credential=key)
        await allow(found, *allowed)
        admission = {"key_id": granted.identity.key_id, "grant": granted.fallback_grant}
        recorded = await stream.reserve("request-2", credential=Credential(), fallback_admission=admission)
        assert recorded.reservation_id
