"""Guests of an edge: requests that an edge of another region offers on its stream."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from edge_mesh import FakeWorker, edge_mesh, token_at
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Form
from region_edges import home_edge
from two_regions import full, wait_for

NANOS_PER_S = 1_000_000_000
MAX_GUESTS = 4  # of which one stream has half


async def test_a_guest_gets_its_tokens_and_an_end_that_names_what_it_used():
    async with edge_mesh() as mesh, home_edge(mesh.address) as home:
        home.offer(away_nanos=NANOS_PER_S, time_left_nanos=20 * NANOS_PER_S)
        assert (await home.next_frame()).WhichOneof("frame") == "started"
        kind, finished, tokens = await home.end_of()
        assert kind == "finished"
        assert tokens == [(index, token_at(index)) for index in range(3)]
        assert (finished.reason, finished.output_tokens) == (FINISH_REASON_LENGTH, 3)
        assert finished.times != RunTimes()
        [ticket] = mesh.queue.tickets
        assert ticket.away_nanos == NANOS_PER_S
        assert 0 < ticket.time_left_nanos <= 20 * NANOS_PER_S
        await wait_for(mesh, guests=0, active_requests=0)


async def test_a_guest_continues_the_answer_that_its_home_began():
    async with edge_mesh() as mesh, home_edge(mesh.address) as home:
        home.offer(token_ids=[5, 6, 7], emitted=1, may_have_run=True)
        _, finished, tokens = await home.end_of()
        assert [index for index, _ in tokens] == [1, 2, 3]
        assert finished.output_tokens == 3
        [start] = mesh.workers[0].starts
        assert (list(start.token_ids), start.emitted) == ([5, 6, 7], 1)
        assert mesh.queue.tickets[0].may_have_run


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": []},
        {"token_ids": [5], "emitted": 1},
        {"token_ids": [5], "emitted": 2},
        {"token_ids": [100_000]},
        {"max_output_tokens": 0},
        {"max_output_tokens": 100_000},
        {"form": Form(regex="a")},
        {"priority": 0},
        {"weight": 0.0},
    ],
    ids="-".join,
)
async def test_an_offer_that_is_wrong_is_rejected_alone(fields):
    async with edge_mesh() as mesh, home_edge(mesh.address) as home:
        home.offer(1, **fields)
        home.offer(2)
        kind, rejected, _ = await home.end_of(1)
        assert (kind, rejected.failure.reason) == ("rejected", "GUEST_INVALID")
        assert (await home.end_of(2))[0] == "finished"
        assert not home.down.is_set()


async def test_one_stream_has_half_of_the_guests_and_all_streams_have_all():
    async with AsyncExitStack() as stack:
        worker = FakeWorker("w1", pause_at_index=1)
        mesh = await stack.enter_async_context(edge_mesh(fakes=[worker], max_guests=MAX_GUESTS))
        one, other, third = [await stack.enter_async_context(home_edge(mesh.address)) for _ in range(3)]
        for home in (one, other):
            for handle in range(1, MAX_GUESTS // 2 + 2):
                home.offer(handle)
            kind, rejected, _ = await home.end_of(MAX_GUESTS // 2 + 1)
            assert (kind, rejected.failure.reason) == ("rejected", "GUESTS_FULL")
            assert rejected.failure.retry_after.seconds == 1
        third.offer()
        assert (await third.end_of())[1].failure.reason == "GUESTS_FULL"
        one.cancel(1)
        kind, _, _ = await one.end_of(1)
        assert kind == "cancelled"
        third.offer(2)
        assert (await third.next_frame()).WhichOneof("frame") == "started"


async def test_a_handle_that_is_in_use_ends_the_stream_and_its_guests():
    worker = FakeWorker("w1", pause_at_index=1)
    async with edge_mesh(fakes=[worker]) as mesh, home_edge(mesh.address) as home:
        home.offer()
        await asyncio.wait_for(worker.paused.get(), 20.0)
        home.offer()
        await asyncio.wait_for(home.down.wait(), 20.0)
        await asyncio.wait_for(worker.cancels.get(), 20.0)
        await wait_for(mesh, guests=0, active_requests=0)


async def test_a_started_guest_that_the_queue_evicts_goes_on_at_home():
    async with edge_mesh() as mesh, home_edge(mesh.address) as home:
        mesh.queue.holds_tickets = True
        home.offer()
        ticket = await asyncio.wait_for(mesh.queue.held_tickets.get(), 20.0)
        for peer in mesh.queue.peers:
            peer.send(mesh.queue.shed(ticket, full()))
        kind, failed, _ = await home.end_of()
        unavailable, _ = grpc.StatusCode.UNAVAILABLE.value
        assert (kind, failed.failure.code, failed.failure.reason) == ("failed", unavailable, "QUEUE_FULL")


async def test_guests_do_not_leave_their_region_for_a_third():
    third = {"regions": ("ap=127.0.0.1:1",), "allowed_regions": lambda _: ("ap",)}
    async with edge_mesh(**third) as mesh, home_edge(mesh.address) as home:
        mesh.queue.sheds.append(full())
        home.offer()
        kind, rejected, _ = await home.end_of()
        assert (kind, rejected.failure.reason) == ("rejected", "QUEUE_FULL")
