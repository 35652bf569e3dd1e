"""The drain of a region at its edges: what routing tells them, and what becomes of guests and sessions."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from edge_mesh import FakeWorker, edge_mesh, text_of
from edge_sessions import session
from free_ports import free_port
from penstock.chassis.lifecycle import background
from penstock.chassis.server.server import serving
from penstock.chassis.streams.protocol import hello_of
from penstock.edge.regions.drain import RegionDrain
from penstock.edge.regions.drain_watch import DrainWatch
from penstock.mesh.v1.routing_pb2_grpc import add_RoutingServiceServicer_to_server
from penstock.routing.regions.region_state import RegionState
from penstock.routing.regions.traffic_plan import TrafficPlan
from penstock.routing.regions.watch import RegionWatchService
from region_edges import home_edge
from two_regions import TIMEOUT_S, two_regions, wait_for


def plan(*drained, own="eu"):
    state = RegionState(drained=frozenset(drained))
    return TrafficPlan.of(own, ("us",), state, now=0.0, step_s=1.0)


@asynccontextmanager
async def routing(*drained, own="eu", port=0):
    """Yield the service and its address."""
    watch = RegionWatchService(plan(*drained, own=own), hello_of("routing", "routing-1"))
    registration = (add_RoutingServiceServicer_to_server, watch)
    async with serving(f"127.0.0.1:{port}", [registration], drain_grace=0.0) as server:
        yield watch, server.address
        watch.close()


@asynccontextmanager
async def watching(*addresses):
    drain = RegionDrain(lambda: 0.0)
    watch = DrainWatch(addresses, drain, hello_of("edge", "edge-1"), region="eu")
    async with background(watch.run()):
        yield watch


async def sees(watch, **figures):
    async with asyncio.timeout(TIMEOUT_S):
        while {name: watch.figures[name] for name in figures} != figures:  # noqa: ASYNC110  # no event for this
            await asyncio.sleep(0.01)


async def test_an_edge_learns_of_a_drain_that_began_before_it_and_of_its_end():
    async with routing("eu") as (service, address), watching(address) as watch:
        await sees(watch, region_drained=True)
        assert service.figures == {"edges_watching": 1}
        service.on_plan(plan("us"))
        await sees(watch, region_drained=False)
        service.on_plan(plan("us", "eu"))
        await sees(watch, region_drained=True)


async def test_the_last_state_stays_while_routing_is_dead_and_its_successor_replaces_it():
    port = free_port()
    async with watching(f"127.0.0.1:{port}") as watch:
        async with routing("eu", port=port):
            await sees(watch, region_drained=True)
        await sees(watch, routing_links_up=False)
        assert watch.figures["region_drained"]
        async with routing(port=port):
            await sees(watch, region_drained=False, routing_links_up=True)


async def test_an_edge_uses_the_process_of_routing_that_is_alive():
    async with routing("eu") as (_, address), watching(f"127.0.0.1:{free_port()}", address) as watch:
        await sees(watch, region_drained=True)


async def test_the_state_of_another_region_is_ignored():
    async with routing("us", own="us") as (service, address), watching(address) as watch:
        await sees(watch, routing_links_up=True)
        service.on_plan(plan(own="us"))
        service.on_plan(plan("us", own="us"))
        await sees(watch, routing_links_up=True)
        assert not watch.figures["region_drained"]


@asynccontextmanager
async def region(*, drained=(), **settings):
    """Yield an edge of the region `eu` that is told what routing says, and this service."""
    async with (
        routing(*drained) as (service, address),
        edge_mesh(region="eu", routings=(address,), **settings) as mesh,
    ):
        await wait_for(mesh, routing_links_up=1)
        yield mesh, service


async def test_a_drained_region_rejects_guests_and_lets_running_ones_end():
    worker = FakeWorker("w1", pause_at_index=1)
    async with region(fakes=[worker]) as (mesh, service), home_edge(mesh.address) as home:
        home.offer(1)
        handle = await asyncio.wait_for(worker.paused.get(), TIMEOUT_S)
        service.on_plan(plan("eu"))
        await wait_for(mesh, region_drained=1)
        home.offer(2)
        kind, rejected, _ = await home.end_of(2)
        assert (kind, rejected.failure.reason) == ("rejected", "REGION_DRAINED")
        assert rejected.failure.retry_after.seconds == 5
        worker.send_tokens(handle)
        kind, finished, _ = await home.end_of(1)
        assert (kind, finished.output_tokens) == ("finished", 3)
        service.on_plan(plan())
        await wait_for(mesh, region_drained=0)
        home.offer(3)
        assert (await home.next_frame()).WhichOneof("frame") == "started"


async def test_another_edge_offers_nothing_more_to_a_region_that_says_that_it_is_drained():
    async with (
        routing("us", own="us") as (_, address),
        two_regions(us_settings={"region": "us", "routings": (address,)}) as regions,
    ):
        await wait_for(regions.us, region_drained=1)
        for _ in range(3):
            regions.shed_at_home()
            with pytest.raises(Exception, match="full"):
                await regions.answer("x")
        assert not regions.us.queue.tickets


async def test_sessions_of_a_drained_region_move_after_their_running_requests():
    worker = FakeWorker("w1", pause_at_index=1)
    async with region(fakes=[worker]) as (mesh, service), session(mesh) as client:
        client.generate(1, max_output_tokens=3)
        handle = await asyncio.wait_for(worker.paused.get(), TIMEOUT_S)
        service.on_plan(plan("eu"))
        number = 1
        while True:  # until the session is told
            number += 1
            client.generate(number, max_output_tokens=1)
            kind, frame = await asyncio.wait_for(_next_end(client), TIMEOUT_S)
            if kind == "failed":
                break
        assert (frame.handle, frame.failure.reason) == (number, "DRAINING")
        worker.send_tokens(handle)
        assert (await asyncio.wait_for(client.next_frame("finished"), TIMEOUT_S)).handle == 1
        assert await asyncio.wait_for(client.next_frame("down"), TIMEOUT_S) == "ended"
        assert client.texts[1] == text_of(3)
        assert number > 2, "it was not told before the proxies knew"


async def _next_end(client):
    while True:
        kind, frame = await client.frames.get()
        if kind in ("finished", "failed"):
            return kind, frame


async def test_an_edge_of_a_drained_region_serves_what_the_proxies_still_send():
    async with region(drained=["eu"]) as (mesh, _):
        await wait_for(mesh, region_drained=1)
        texts = [each.delta.text async for each in mesh.generate(max_output_tokens=3) if each.HasField("delta")]
        assert "".join(texts) == text_of(3)
        async with session(mesh) as client:
            for number in (1, 2):
                client.generate(number, max_output_tokens=3)
                assert (await asyncio.wait_for(client.next_frame("finished"), TIMEOUT_S)).handle == number
