"""Queue and scheduler as real processes, with an edge and workers that the test controls: the effect of a kill."""

import signal
from contextlib import asynccontextmanager

import pytest

from queue_streams import edge_at
from queue_streams import ticket as ticket_of_model
from scheduler_streams import worker_at
from tier_process import address_of, tier_process, wait_for_event


def ticket(ticket_id, **fields):
    return ticket_of_model(ticket_id, model="m@d", **fields)


@asynccontextmanager
async def process_of(tier, **settings):
    async with tier_process(tier, **settings) as process:
        yield process, await address_of(process)


async def known_at(edge, *models):
    while [entry.model for entry in (await edge.receive("catalog")).entries] != list(models):
        pass


async def test_a_ticket_goes_from_edge_to_worker_through_real_processes():
    async with (
        process_of("queue") as (_, queue),
        process_of("scheduler", QUEUES=queue) as (_, scheduler),
        worker_at(scheduler) as worker,
        edge_at(queue) as edge,
    ):
        await known_at(edge, "m")
        edge.enqueue(ticket("a"))
        leased, expected = (await edge.receive("leased")).lease, (await worker.receive("expect")).lease
        assert (leased.lease_id, leased.ticket_id, leased.worker_id) == (expected.lease_id, "a", "w1")


async def test_tickets_outlive_the_scheduler_and_are_placed_by_the_next():
    async with process_of("queue") as (_, queue), edge_at(queue) as edge:
        async with process_of("scheduler", QUEUES=queue) as (victim, scheduler), worker_at(scheduler, slots=1):
            await known_at(edge, "m")
            edge.enqueue(ticket("runs"), ticket("ahead"), ticket("waits"), ticket("too"))
            assert [(await edge.receive("leased")).lease.ticket_id for _ in range(2)] == ["runs", "ahead"]
            victim.kill()
            await known_at(edge)
        async with process_of("scheduler", QUEUES=queue) as (_, scheduler), worker_at(scheduler, "w2"):
            assert [(await edge.receive("leased")).lease.ticket_id for _ in range(2)] == ["waits", "too"]


async def test_a_restarted_shard_is_connected_by_its_scheduler():
    async with (
        process_of("queue") as (victim, queue),
        process_of("scheduler", QUEUES=queue) as (_, scheduler),
        worker_at(scheduler),
    ):
        victim.kill()
        await victim.wait()
        async with process_of("queue", LISTEN=queue), edge_at(queue) as edge:
            await known_at(edge, "m")
            edge.enqueue(ticket("a"))
            assert (await edge.receive("leased")).lease.ticket_id == "a"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stopped_scheduler_sends_end_to_its_workers_and_exits_with_0(number):
    async with (
        process_of("queue") as (_, queue),
        process_of("scheduler", QUEUES=queue) as (process, scheduler),
        worker_at(scheduler) as worker,
        edge_at(queue) as edge,
    ):
        await known_at(edge, "m")
        process.send_signal(number)
        assert (await worker.receive("end")).reason == "drained"
        await known_at(edge)
        assert await wait_for_event(process, "drained")
        assert await process.wait() == 0
