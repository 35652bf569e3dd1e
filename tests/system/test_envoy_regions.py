"""Two and more regions, each with a real Envoy and its control plane: calls leave a region only if they must and may."""

import asyncio

import grpc
import httpx
import pytest

from envoy_auth import GOOD
from envoy_proxy import ECHO
from envoy_regions import running_regions

AUTHORIZED = {"authorization": GOOD}


async def test_calls_of_a_region_whose_edges_die_are_answered_by_the_next_one(tmp_path):
    async with running_regions(tmp_path, "eu", "us") as (eu, us):
        assert {await eu.unary() for _ in range(20)} == {b"eu0"}
        await eu.stop_edges()
        assert {await eu.unary() for _ in range(50)} == {b"us0"}
        running = eu.stream()
        assert await running.read() == b"us0 first"
        us.backends[0].may_continue.set()
        assert await running.read() == b"us0 second"
        assert await running.code() is grpc.StatusCode.OK
        async with httpx.AsyncClient(base_url=f"http://{eu.front.address}", headers=AUTHORIZED) as http:
            assert (await http.get("/v1/models")).text == "us0"
