"""Queue and scheduler as real processes between an edge and workers in the test's hand: what a kill of either costs."""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from queue_streams import edge_at, ticket
from scheduler_streams import worker_at

PATIENCE = 60.0  # s


@asynccontextmanager
async def process_of(tier, **settings):
    """One process of a tier that listens, and its address."""
    own = {f"PENSTOCK_{tier.upper()}_{name}": value for name, value in {"LISTEN": "127.0.0.1:0", **settings}.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"penstock.{tier}"), env=os.environ | own, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process, (await logged(process, "listening"))["address"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def logged(process, event):
    async with asyncio.timeout(PATIENCE):
        async for line in process.stderr:
            found = json.loads(line) if line.startswith(b"{") else {}
            if found.get("event") == event:
                return found
    raise AssertionError(f"a process ended without saying {event}")


async def known_at(edge, *models):
    while [entry.model for entry in (await edge.hear("catalog")).entries] != list(models):
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
        leased, expected = (await edge.hear("leased")).lease, (await worker.hear("expect")).lease
        assert (leased.lease_id, leased.ticket_id, leased.worker_id) == (expected.lease_id, "a", "w1")


async def test_tickets_outlive_the_scheduler_and_are_placed_by_the_next():
    async with process_of("queue") as (_, queue), edge_at(queue) as edge:
        async with process_of("scheduler", QUEUES=queue) as (victim, scheduler), worker_at(scheduler, slots=1):
            await known_at(edge, "m")
            edge.enqueue(ticket("runs"), ticket("ahead"), ticket("waits"), ticket("too"))
            assert [(await edge.hear("leased")).lease.ticket_id for _ in range(2)] == ["runs", "ahead"]
            victim.kill()
            await known_at(edge)
        async with process_of("scheduler", QUEUES=queue) as (_, scheduler), worker_at(scheduler, "w2"):
            assert [(await edge.hear("leased")).lease.ticket_id for _ in range(2)] == ["waits", "too"]


async def test_a_shard_that_starts_again_is_found_again_by_its_scheduler():
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
            assert (await edge.hear("leased")).lease.ticket_id == "a"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_scheduler_asked_to_end_says_so_to_its_workers_and_ends_well(number):
    async with (
        process_of("queue") as (_, queue),
        process_of("scheduler", QUEUES=queue) as (process, scheduler),
        worker_at(scheduler) as worker,
        edge_at(queue) as edge,
    ):
        await known_at(edge, "m")
        process.send_signal(number)
        assert (await worker.hear("end")).reason == "drained"
        await known_at(edge)
        assert await logged(process, "drained")
        assert await process.wait() == 0
