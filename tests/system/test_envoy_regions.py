"""Regions with a real Envoy and control plane each: calls leave a region only if they must and may."""

import asyncio
from contextlib import suppress

import grpc
import httpx
import pytest

from envoy_auth import GOOD
from envoy_proxy import ECHO, Backend
from envoy_regions import KNOWN, running_regions, sees_healthy
from penstock.chassis.errors import error_from_rpc

UNSERVED = ("UNAVAILABLE", "CONNECTION_LOST")  # the proxy's own answer, without details
AUTHORIZED = {"authorization": GOOD}


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return failure.value.code().name, error_from_rpc(failure.value).reason


async def http_answer(region, path):
    async with httpx.AsyncClient(base_url=f"http://{region.front.address}", headers=AUTHORIZED) as http:
        answer = await http.get(path)
        return answer.status_code, answer.text


async def answers(region, calls=30):
    """The edges that answer so many calls at the same time."""
    return set(await asyncio.gather(*(region.unary() for _ in range(calls))))


async def test_calls_of_a_region_whose_edges_die_are_answered_by_the_next_one_and_return(tmp_path):
    async with running_regions(tmp_path, "eu", "us", "ap") as (eu, us, ap):
        assert await answers(eu) == {b"eu0"}
        await eu.stop_edges()
        assert await answers(eu) == {b"us0"}
        assert await http_answer(eu, "/v1/models") == (200, "us0")
        assert us.backends[0].metadata["x-penstock-regions"] == "*"
        running = eu.stream()
        assert await running.read() == b"us0 first"
        assert "x-penstock-unserved" not in dict(await running.initial_metadata())
        await us.stop_edges()  # the stream, which waited for this, ends itself
        assert await answers(eu) == {b"ap0"}
        async with Backend("eu1").running() as returned:
            eu.front.write_edges(returned.edge)
            await sees_healthy(eu.front, "edge_grpc", 1)
            await returns_home(eu, b"eu1")
            assert await answers(eu) == {b"eu1"}
        assert await answers(eu) == {b"ap0"}
        calls = len(ap.backends[0].calls)
        await ap.stop_edges()
        assert await refusal(eu.unary()) == UNSERVED
        assert len(ap.backends[0].calls) == calls


async def returns_home(region, edge):
    """Return once a call reaches `edge`. Just after all edges were replaced, Envoy may fail a call with no host."""
    while True:
        with suppress(grpc.aio.AioRpcError):
            if await region.unary() == edge:
                return


async def test_without_the_word_of_auth_no_call_leaves_and_none_enters(tmp_path):
    async with running_regions(tmp_path, "eu", "us", edges=2) as (eu, us):
        await eu.backends[0].stop()
        await sees_healthy(eu.front, "edge_grpc", 1)
        assert {await eu.unary() for _ in range(50)} == {b"eu1"}  # one healthy edge suffices
        for eu.auth.regions in ("us, ap", "ap"):  # of an auth of another region, as its own refuses the tenant
            assert await refusal(eu.unary()) == ("PERMISSION_DENIED", "REGION_NOT_ALLOWED")
            assert (await http_answer(eu, "/v1/models"))[0] == 403
        await eu.backends[1].stop()
        await sees_healthy(eu.front, "edge_grpc", 0)
        eu.auth.regions = "eu, us"
        us.auth.regions = "eu"  # who is right is not known, so the call is served by neither
        assert await refusal(eu.unary()) == ("PERMISSION_DENIED", "REGION_NOT_ALLOWED")
        us.auth.regions = ""  # as if it could not say: the word of the other region holds
        assert await eu.unary() in (b"us0", b"us1")
        taken = sum(len(backend.calls) for backend in us.backends)
        for eu.auth.regions, forged in (("eu", "*"), ("", "us")):
            assert await refusal(eu.unary(("x-penstock-regions", forged))) == UNSERVED
        eu.auth.regions = "*"
        assert (await http_answer(eu, "/v1/files"))[0] == 503  # files are stored in one region
        assert sum(len(backend.calls) for backend in us.backends) == taken


async def test_the_region_door_serves_the_public_api_of_proxies_and_never_a_third_region(tmp_path):
    async with running_regions(tmp_path, "eu", "us") as (eu, us), grpc.aio.insecure_channel(us.door) as channel:

        def call(*metadata):
            return channel.unary_unary(f"{ECHO}Unary")(b"", metadata=(*KNOWN, *metadata))

        us.auth.regions = ""
        kept = (("x-penstock-regions", "us"), ("x-penstock-identity", "forged"), ("x-forwarded-for", "192.0.2.1"))
        assert await call(*kept) == b"us0"
        assert us.backends[0].metadata["x-penstock-identity"] == "signed-identity"
        assert us.auth.checks[-1].headers["x-forwarded-for"] == "192.0.2.1"
        assert await refusal(call()) == ("PERMISSION_DENIED", "REGION_NOT_ALLOWED")
        forged = ("penstock-kept-regions", "us")
        assert await refusal(call(forged)) == ("PERMISSION_DENIED", "REGION_NOT_ALLOWED")
        us.auth.regions = "*"
        await us.stop_edges()
        assert await refusal(call(("x-penstock-regions", "*"))) == UNSERVED
        assert eu.backends[0].calls == []
