"""The SDK's choice among several edges: rotation, failures, waits and recovery."""

import asyncio
import socket

import pytest

from client_edges import (
    FAST_RETRIES,
    WORDS,
    ScriptedEdge,
    client_of,
)
from inference_server import inference_at, inference_server
from penstock.chassis.errors import (
    Overloaded,
    Unavailable,
)
from penstock.client import Client, DeadlineExceeded, RetryPolicy, endpoints, target_rotation
from penstock.v1 import inference_pb2 as pb


def connections_tried(monkeypatch):
    """Record every wait for a channel."""
    tried, is_ready = [], endpoints._wait_ready

    def noted(channel, **options):
        tried.append(channel)
        return is_ready(channel, **options)

    monkeypatch.setattr(endpoints, "_wait_ready", noted)
    return tried


async def test_unreachable_targets_are_retried_after_a_pause(monkeypatch):
    monkeypatch.setattr(target_rotation, "FAILURE_COOLDOWN_S", 60.0)
    monkeypatch.setattr(endpoints, "RETRY_PAUSE_S", 0.1)
    tried = connections_tried(monkeypatch)
    async with inference_server() as (_, one), inference_server() as (_, other):
        unreachable = (one.address, other.address)
    async with Client(*unreachable, retries=RetryPolicy(max_attempts=1, connect_timeout=0.2)) as client:
        with pytest.raises(Unavailable, match=unreachable[0]):
            await client.complete("Hello")
    assert len(set(tried)) == 2
    assert len(tried) <= 2 * (1 + 0.2 / 0.1), "each no oftener than every pause"


async def test_a_recovered_target_is_found_while_the_last_healthy_one_is_unreachable(monkeypatch):
    monkeypatch.setattr(target_rotation, "FAILURE_COOLDOWN_S", 60.0)
    monkeypatch.setattr(endpoints, "CONNECT_TIMEOUT_S", 1_000.0)  # a wait for the unreachable target would not end
    monkeypatch.setattr(endpoints, "RETRY_PAUSE_S", 1_000.0)  # nor would a pause before every target was tried
    edge = ScriptedEdge()
    async with inference_server() as (_, stopped):
        unreachable = stopped.address
    async with (
        inference_server(Generate=edge.generate) as (_, restored),
        Client(unreachable, restored.address) as client,
    ):
        for each in client._endpoints._endpoints.values():  # as if both had just failed
            client._endpoints.mark_failed(each, began_at=0.0)
        async with asyncio.timeout(30):
            assert await client.complete("Hello")


async def test_an_unreachable_target_is_skipped_during_its_cooldown(monkeypatch):
    monkeypatch.setattr(target_rotation, "FAILURE_COOLDOWN_S", 60.0)
    monkeypatch.setattr(endpoints, "CONNECT_TIMEOUT_S", 1_000.0)  # the refused connection decides; no timeout passes
    tried = connections_tried(monkeypatch)
    async with inference_server() as (_, server):
        unreachable = server.address
    edge = ScriptedEdge()
    async with inference_server(Generate=edge.generate) as (_, server), Client(unreachable, server.address) as client:
        for _ in range(3):
            await client.complete("Hello")
    assert [tried.count(each) for each in dict.fromkeys(tried)] == [1, 3]


async def test_a_target_that_is_not_connected_soon_is_replaced_by_one_that_is(monkeypatch):
    monkeypatch.setattr(target_rotation, "FAILURE_COOLDOWN_S", 60.0)
    monkeypatch.setattr(endpoints, "CONNECT_TIMEOUT_S", 1_000.0)
    patient = RetryPolicy(connect_timeout=1_000.0)
    is_ready = endpoints._wait_ready  # a wait for the silent target would not end
    monkeypatch.setattr(endpoints, "_wait_ready", lambda channel, **_: is_ready(channel, fail_on_refusal=False))
    tried = connections_tried(monkeypatch)
    edge = ScriptedEdge()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, as a frozen process does
        async with (
            inference_server(Generate=edge.generate) as (_, server),
            Client(server.address, "{}:{}".format(*silent.getsockname()), retries=patient) as client,
            asyncio.timeout(30),
        ):
            for _ in range(4):
                await client.complete("Hello")
    assert [tried.count(each) for each in dict.fromkeys(tried)] == [4, 1]


async def test_a_draining_edge_is_skipped_during_its_cooldown(monkeypatch):
    monkeypatch.setattr(target_rotation, "FAILURE_COOLDOWN_S", 60.0)
    edges = [
        ScriptedEdge(script=[Unavailable("this edge drains", reason="DRAINING", retry_after=0.001)]),
        ScriptedEdge(),
    ]
    async with client_of(*edges) as client:
        for _ in range(4):
            await client.complete("Hello")
    assert [len(edge.requests) for edge in edges] == [1, 4]


async def test_a_client_waits_for_an_edge_that_is_still_starting():
    async with inference_server() as (_, server):
        address = server.address
    async with Client(address, retries=FAST_RETRIES) as client:
        reading = asyncio.create_task(client.complete("Hello"))
        await asyncio.sleep(0)
        async with inference_at(address, Generate=ScriptedEdge().generate):
            assert await reading == "".join(WORDS)


async def test_no_edge_within_the_timeout_is_an_error_that_names_the_targets():
    async with inference_server() as (_, server):
        address = server.address
    async with Client(address, retries=RetryPolicy(max_attempts=1, connect_timeout=0.05)) as client:
        with pytest.raises(Unavailable, match=address) as failure:
            await client.complete("Hello")
    assert failure.value.reason == "CONNECTION_LOST"


async def test_a_timeout_bounds_all_attempts_together():
    edge = ScriptedEdge(script=[Overloaded("full", retry_after=0.2)] * 100)
    async with client_of(edge) as client:
        with pytest.raises(DeadlineExceeded, match="full"):
            await client.complete("Hello", timeout=0.3)
    assert [0 < each.timeout.ToMilliseconds() <= 300 for each in edge.requests] == [True, True]
    assert edge.requests[1].timeout.ToMilliseconds() <= 100


async def test_requests_spread_over_the_targets():
    edges = [ScriptedEdge(), ScriptedEdge(), ScriptedEdge()]
    async with client_of(*edges) as client:
        for _ in range(6):
            await client.complete("Hello")
    assert [len(edge.requests) for edge in edges] == [2, 2, 2]


async def test_tokens_are_counted_and_models_listed():
    requests, failures = [], [Unavailable("draining", reason="DRAINING", retry_after=0.001)]

    async def count(request, context):
        requests.append(request)
        return pb.CountTokensResponse(prompt_tokens=7, context_length=99, token_ids=[1, 2])

    async def models(request, context):
        if failures:
            raise failures.pop()
        return pb.ListModelsResponse(models=[pb.Model(name="m")])

    async with client_of(ScriptedEdge(), CountTokens=count, ListModels=models) as client:
        counted = await client.count_tokens([{"role": "user", "content": "Hi"}], model="m", include_token_ids=True)
        assert (counted.prompt_tokens, counted.context_length) == (7, 99)
        assert (requests[0].chat.messages[0].content, requests[0].include_token_ids) == ("Hi", True)
        assert [each.name for each in await client.list_models()] == ["m"]


async def test_a_client_that_is_not_open_raises_an_error_with_the_remedy():
    with pytest.raises(RuntimeError, match="async with"):
        await Client("127.0.0.1:1").complete("Hello")
    with pytest.raises(ValueError, match="target"):
        Client()
