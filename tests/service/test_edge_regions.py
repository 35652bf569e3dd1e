"""Residency at real edges with a real auth: refusals over both APIs, changes, and outages of auth."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest

from edge_auth_mesh import KEY, edge_auth_mesh
from edge_calls import rejected_call
from edge_mesh import text_of
from free_ports import free_port
from penstock.auth.identity.policy import Policy
from penstock.auth.identity.tenant import Tenant
from penstock.chassis.channels import channel
from penstock.chassis.errors import PenstockError
from penstock.client import Client
from penstock.client.retries import RetryPolicy
from penstock.v1.inference_pb2 import GenerateRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

FAST_OUTAGE = {"auth_fallback_after": 0.05}
TOKENS = 9
REFUSAL = (
    "tenant default allows the regions us, and this is region eu: send the request to one of them, or ask for"
    " `penstock tenants put`"
)


def allow(mesh, *regions):
    tenant = Tenant(tenant_id="default", policy=Policy(allowed_regions=regions))
    mesh.auth.authorizer.put_tenant(tenant, mesh.auth.now)


@asynccontextmanager
async def mesh_and_client(path, edge_region="eu", **settings):
    mesh_settings = {"auth": {"region": "eu"}, "region": edge_region, **FAST_OUTAGE, **settings}
    async with (
        edge_auth_mesh(path, **mesh_settings) as mesh,
        Client(*mesh.addresses, api_key=KEY, retries=RetryPolicy(max_attempts=1)) as client,
    ):
        yield mesh, client


async def answer(client) -> str:
    return await client.complete("hi", max_output_tokens=TOKENS)


async def reason_of(call) -> str:
    with pytest.raises(PenstockError) as failure:
        await call
    return failure.value.reason


async def test_a_refusal_over_http_is_403_with_the_allowed_regions(tmp_path):
    port = free_port()
    async with mesh_and_client(tmp_path, http_listen=f"127.0.0.1:{port}") as (mesh, _), httpx.AsyncClient() as http:
        allow(mesh, "us")
        response = await http.post(
            f"http://127.0.0.1:{port}/v1/completions",
            headers={"authorization": f"Bearer {KEY}"},
            json={"model": "m", "prompt": "hi"},
        )
        assert (response.status_code, response.headers["x-penstock-reason"]) == (403, "REGION_NOT_ALLOWED")
        assert response.headers["x-should-retry"] == "false"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "region_not_allowed")
        assert error["message"] == REFUSAL


async def test_a_refusal_over_grpc_is_permission_denied_before_the_message_is_read(tmp_path):
    async with mesh_and_client(tmp_path) as (mesh, _), channel(mesh.addresses[0]) as to_edge:
        allow(mesh, "us")
        metadata = (("authorization", f"Bearer {KEY}"),)
        unreadable = GenerateRequest(model="absent", text="hi", max_output_tokens=2**31)
        error = await rejected_call(InferenceStub(to_edge).Generate(unreadable, metadata=metadata))
        assert (error.code, error.reason) == (grpc.StatusCode.PERMISSION_DENIED, "REGION_NOT_ALLOWED")
        assert (error.message, error.retry_after) == (REFUSAL, None)


async def test_a_change_of_regions_ends_the_fallback_of_a_caller_that_was_admitted_before(tmp_path):
    async with mesh_and_client(tmp_path) as (mesh, client):
        allow(mesh, "eu", "us")
        assert await answer(client) == text_of(TOKENS)
        await mesh.wait_for_figure("cached_identities", 1)
        allow(mesh, "us")
        await mesh.wait_for_figure("cached_identities", 0)
        await mesh.auth.stop()
        await mesh.wait_for_figure("auth_unreachable", 1)
        assert await reason_of(answer(client)) == "AUTH_LOST"
        assert (await mesh.figures())["fallback_admitted"] == 0


async def test_a_caller_of_an_allowed_region_is_served_while_auth_is_away(tmp_path):
    async with mesh_and_client(tmp_path) as (mesh, client):
        allow(mesh, "eu")
        assert await answer(client) == text_of(TOKENS)
        await mesh.auth.stop()
        await mesh.wait_for_figure("auth_unreachable", 1)
        assert await answer(client) == text_of(TOKENS)
        assert (await mesh.figures())["fallback_admitted"] == 1


async def test_an_edge_refuses_what_an_auth_of_another_region_identifies(tmp_path):
    async with mesh_and_client(tmp_path, edge_region="us") as (mesh, client):
        allow(mesh, "eu")
        assert await reason_of(answer(client)) == "REGION_NOT_ALLOWED"
        assert (await mesh.figures())["active_requests"] == 0


async def test_an_edge_refuses_what_an_auth_of_another_region_admits_and_gives_its_tokens_back(tmp_path):
    async with mesh_and_client(tmp_path, edge_region="us", auth_fallback_after=20.0) as (mesh, client):
        assert await answer(client) == text_of(TOKENS)
        await mesh.wait_for_figure("reservations_open", 0)
        mesh.auth.service.is_paused = True
        waiting = asyncio.create_task(reason_of(answer(client)))
        await mesh.wait_for_figure("active_requests", 1)
        while not mesh.auth.service._held_frames:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        mesh.auth.authorizer.residency.on_changed = lambda: None  # the edge learns it from the admission alone
        allow(mesh, "eu")
        mesh.auth.service.resume()
        assert await waiting == "REGION_NOT_ALLOWED"
        assert (await mesh.wait_settled())[-1] == (0, 0, "shed")
