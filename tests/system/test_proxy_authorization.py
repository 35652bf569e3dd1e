"""A real Envoy that asks a real auth: strangers end at the proxy, known callers reach the edge with a signed header."""

import asyncio

import grpc
import httpx
import pytest

from auth_server import auth_process, tenant_with_key
from envoy_proxy import ECHO, Backend
from penstock.chassis.errors import QuotaExceeded, error_from_rpc
from penstock.mesh.identity_header import HEADER
from proxy_checks import authorizing_envoy

GUESS = "pk_unknown_" + "0123456789abcdef" * 2


async def rejection(channel, metadata=()):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await channel.unary_unary(f"{ECHO}Unary")(b"", metadata=metadata)
    return failure.value


async def test_envoy_asks_auth_about_every_caller(tmp_path):
    async with (
        auth_process(failures_per_source=5) as auth,
        Backend("edge").running() as backend,
        authorizing_envoy(tmp_path, auth.check_address, backend) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as http,
        grpc.aio.insecure_channel(address) as channel,
    ):
        key = (await tenant_with_key(auth)).bearer
        known = (("authorization", f"Bearer {key}"), (HEADER, "forged"))
        assert await channel.unary_unary(f"{ECHO}Unary")(b"", metadata=known) == b"edge"
        assert backend.metadata[HEADER] not in ("", "forged")
        assert "," not in backend.metadata[HEADER]
        assert backend.metadata["authorization"] == f"Bearer {key}"
        assert (await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).text == "edge"

        answer = await http.post("/v1/responses", json={}, headers={"authorization": f"Bearer {GUESS}"})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        error = error_from_rpc(await rejection(channel))
        assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_MISSING")
        assert error.message == "send an API key: `authorization: Bearer pk_...`"

        for _ in range(4):
            await rejection(channel, [("authorization", f"Bearer {GUESS}")])
        error = error_from_rpc(await rejection(channel, [("authorization", f"Bearer {GUESS}")]))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_FAILURES")
        assert not isinstance(error, QuotaExceeded)
        assert error.retry_after == 12.0
        answer = await http.get("/v1/models", headers={"authorization": f"Bearer {GUESS}"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "12")
        assert await channel.unary_unary(f"{ECHO}Unary")(b"", metadata=known) == b"edge"


async def test_without_auth_nobody_passes(tmp_path):
    async with Backend("edge").running() as backend, auth_process() as auth:
        key = (await tenant_with_key(auth)).bearer
        unreachable = "127.0.0.1:9"
        async with (
            authorizing_envoy(tmp_path, unreachable, backend) as address,
            httpx.AsyncClient(base_url=f"http://{address}") as http,
        ):
            async with asyncio.timeout(10):
                answer = await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code in (403, 503)
