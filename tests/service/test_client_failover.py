"""The SDK with failover targets: home first, elsewhere while home is down, and home again after a probe."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from client_edges import FAST_RETRIES, WORDS, ScriptedEdge, SessionEdge, answer_request, next_request
from free_ports import free_port
from inference_server import inference_at, inference_server
from penstock.chassis.errors import NotFound, Unavailable
from penstock.client import Client, endpoints
from penstock.v1 import inference_pb2 as pb

TIMEOUT_S = 10.0
ANSWER = "".join(WORDS)


@pytest.fixture(autouse=True)
def _frequent_probes(monkeypatch):
    monkeypatch.setattr(endpoints, "PROBE_INTERVAL_S", 0.01)


class Probes:
    """ListModels of a home target: the number of models of each probe, the last one again and again."""

    def __init__(self, *models):
        self.script = list(models) or [1]
        self.count = 0

    async def list_models(self, request, context):
        self.count += 1
        found = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(found, Exception):
            raise found
        return pb.ListModelsResponse(models=[pb.Model(name="m")] * found)

    async def wait(self, count):
        async with asyncio.timeout(TIMEOUT_S):
            while self.count < count:  # noqa: ASYNC110  # the server has no event
                await asyncio.sleep(0.01)


async def attempts_of(client):
    async with client.generate("Hello") as generation:
        assert await generation.read() == ANSWER
    return generation.attempts


async def wait_home(client):
    async with asyncio.timeout(TIMEOUT_S):
        await client._endpoints.wait_home()


async def test_requests_go_home_while_it_answers():
    home, other, probes = ScriptedEdge(), ScriptedEdge(), Probes()
    async with (
        inference_server(Generate=home.generate, ListModels=probes.list_models) as (_, near),
        inference_server(Generate=other.generate) as (_, far),
        Client(near.address, failover=(far.address,)) as client,
    ):
        assert [await attempts_of(client) for _ in range(3)] == [1, 1, 1]
    assert (len(home.requests), len(other.requests), probes.count) == (3, 0, 0)


async def test_requests_go_elsewhere_while_home_is_unreachable_and_home_after_its_return_without_a_failed_attempt():
    home, other, probes = ScriptedEdge(), ScriptedEdge(), Probes()
    address = f"127.0.0.1:{free_port()}"
    async with (
        inference_server(Generate=other.generate) as (_, far),
        Client(address, failover=(far.address,), retries=FAST_RETRIES) as client,
    ):
        assert [await attempts_of(client) for _ in range(2)] == [1, 1]
        async with inference_at(address, Generate=home.generate, ListModels=probes.list_models):
            await wait_home(client)
            assert [await attempts_of(client) for _ in range(2)] == [1, 1]
    assert (len(home.requests), len(other.requests)) == (2, 2)


async def test_an_answer_that_home_cuts_twice_is_resumed_elsewhere():
    drain = Unavailable("this edge drains", reason="DRAINING", retry_after=0.001)
    home, other, probes = ScriptedEdge(script=[3, drain]), ScriptedEdge(), Probes(0)
    async with (
        inference_server(Generate=home.generate, ListModels=probes.list_models) as (_, near),
        inference_server(Generate=other.generate) as (_, far),
        Client(near.address, failover=(far.address,), retries=FAST_RETRIES) as client,
    ):
        assert await attempts_of(client) == 3
    assert len(home.requests) == 2, "the first failure may be of one edge behind this target"
    assert [list(each.resume.token_ids) for each in other.requests] == [[100, 101, 102]]


@pytest.mark.parametrize(
    "not_yet", [0, Unavailable("auth is away", reason="AUTH_LOST", retry_after=0.1)], ids=["no model", "no auth"]
)
async def test_a_home_target_that_cannot_serve_yet_stays_down(not_yet):
    home, other, probes = ScriptedEdge(), ScriptedEdge(), Probes(not_yet)
    address = f"127.0.0.1:{free_port()}"
    async with (
        inference_server(Generate=other.generate) as (_, far),
        Client(address, failover=(far.address,), retries=FAST_RETRIES) as client,
    ):
        await attempts_of(client)
        async with inference_at(address, Generate=home.generate, ListModels=probes.list_models):
            await probes.wait(2)
            await attempts_of(client)
            assert (len(home.requests), len(other.requests)) == (0, 2)
            probes.script = [1]
            await wait_home(client)
            await attempts_of(client)
            assert (len(home.requests), len(other.requests)) == (1, 2)


async def test_a_home_target_that_rejects_a_probe_for_a_reason_of_its_own_is_up():
    probes = Probes(NotFound("no such method"))
    address = f"127.0.0.1:{free_port()}"
    async with (
        inference_server(Generate=ScriptedEdge().generate) as (_, far),
        Client(address, failover=(far.address,), retries=FAST_RETRIES) as client,
    ):
        await attempts_of(client)
        async with inference_at(address, ListModels=probes.list_models):
            await wait_home(client)


async def test_a_session_goes_home_for_new_requests_and_completes_running_ones_elsewhere():
    home, other, probes = SessionEdge(), SessionEdge(), Probes()
    address = f"127.0.0.1:{free_port()}"
    async with (
        AsyncExitStack() as after_session,
        inference_server(Session=other.session) as (_, far),
        Client(address, failover=(far.address,), retries=FAST_RETRIES) as client,
        client.session() as session,
    ):
        first = asyncio.create_task(session.complete("first"))
        running = await next_request(other)
        other.accept(running)
        other.step((running.handle, 0))
        server = inference_at(address, Session=home.session, ListModels=probes.list_models)
        await after_session.enter_async_context(server)
        await wait_home(client)
        second = asyncio.create_task(session.complete("second"))
        request = await next_request(home)
        home.accept(request)
        await answer_request(home, request)
        assert await second == ANSWER
        await answer_request(other, running, start=1)
        assert await first == ANSWER
    assert (len(home.peers), len(other.peers)) == (1, 1)


@pytest.mark.parametrize("failover", ["b:1", ["a:1"]], ids=["a text", "a home target"])
def test_failover_targets_that_are_none_are_rejected(failover):
    with pytest.raises(ValueError, match="failover is a sequence of targets other than the first ones"):
        Client("a:1", failover=failover)
