"""No callback holds the loop of a shard or a scheduler for long, at the size of a fleet, over real streams."""

import asyncio
import gc
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from loop_watchdog import watched_loop
from penstock.chassis.durations import NANOS_PER_S
from penstock.mesh.v1.scheduler_pb2 import RunningLease
from penstock.mesh.v1.ticket_pb2 import PoisonReport
from penstock.queue.ticket import from_frame
from queue_shards import shard_of
from queue_streams import edge_at, scheduler_at, ticket
from scheduler_streams import idle_worker, scheduler_of, shard_server

TICKETS = 100_000
EXPIRING_TICKETS = 10_000
TENANTS, EDGES = 100, 20
WORKERS, LEASES = 100, 256
SENT_TOGETHER = 2_000
FILLED_TOGETHER = 20  # in one callback; a heartbeat takes several turns of the loop, also on a busy machine
POISON = 66  # fingerprint


@pytest.fixture(autouse=True)
def frozen_heap():
    """As in a process of the mesh, the collector walks no object from before the start."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def waiting_ticket(number, **fields):
    return ticket(f"{number:032x}", tenant_id=f"tenant {number % TENANTS}", readmitted=True, **fields)


async def fill(shard, tickets=TICKETS, **fields):
    """Let the shard hold tickets of the connected edges. Heartbeats of all streams go on meanwhile."""
    streams = list(shard.service._edges)
    for number in range(tickets):
        ticket = from_frame(waiting_ticket(number, **fields), streams[number % len(streams)], shard.time)
        shard.book.enqueue(ticket, shard.time)
        if not number % FILLED_TOGETHER:
            await asyncio.sleep(0)


@asynccontextmanager
async def shard_with_edges(edges=EDGES):
    async with AsyncExitStack() as stack:
        shard = await stack.enter_async_context(shard_of())
        scheduler = await stack.enter_async_context(scheduler_at(shard.address))
        names = [f"edge-{number}" for number in range(edges)]
        yield shard, scheduler, [await stack.enter_async_context(edge_at(shard.address, name)) for name in names]


async def all_frames_are_read(*edges):
    """Wait until the shard has answered all earlier frames."""
    for edge in edges:
        edge.withdraw("none")
    for edge in edges:
        await edge.receive("withdrawn")


async def lease_first_offer(shard, scheduler, edges):
    """Return the number of tickets that have arrived when the edge of the first offer has its lease."""
    scheduler.credit(1)
    offered = (await scheduler.receive("offer")).ticket.ticket_id
    scheduler.place(offered)
    lease = (await edges[int(offered, 16) % EDGES].receive("leased")).lease
    assert lease.ticket_id == offered
    return len(shard.book.tickets)


async def test_a_restarted_shard_takes_back_100_000_tickets_and_leases_meanwhile():
    async with shard_with_edges() as (shard, scheduler, edges):
        for edge in edges:
            edge.ignored = {"queued"}
        with watched_loop() as watchdog:
            leasing = asyncio.create_task(lease_first_offer(shard, scheduler, edges))
            for first in range(0, TICKETS, SENT_TOGETHER):
                for number in range(first, first + SENT_TOGETHER):
                    edges[number % EDGES].enqueue(waiting_ticket(number))
                    if not number % TENANTS:
                        await asyncio.sleep(0)
                await asyncio.gather(*(edge.link.flush() for edge in edges))  # the collector walks frames that wait
            await all_frames_are_read(*edges)
        assert len(shard.book.tickets) == TICKETS - 1
        assert shard.book.counters.shed == {}
        assert await leasing < SENT_TOGETHER
        assert watchdog.was_never_held, watchdog


async def test_a_shard_removes_100_000_tickets_of_a_lost_edge():
    async with shard_with_edges(edges=1) as (shard, _, [edge]):
        await fill(shard)
        with watched_loop() as watchdog:
            edge.link.close("the test ends the edge")
            async with edge_at(shard.address, "another edge") as other:
                while shard.book.tickets:
                    await all_frames_are_read(other)
        assert watchdog.was_never_held, watchdog


async def test_a_shard_drops_many_tickets_that_expire_at_once():
    async with shard_with_edges() as (shard, _, edges):
        await fill(shard, EXPIRING_TICKETS, time_left_nanos=60 * NANOS_PER_S)
        with watched_loop() as watchdog:
            shard.time += 60.0
            for number in range(EXPIRING_TICKETS):
                await edges[number % EDGES].receive("shed")
        assert watchdog.was_never_held, watchdog


async def test_a_shard_finds_a_poison_request_among_100_000_tickets():
    async with shard_with_edges() as (shard, scheduler, edges):
        await fill(shard)
        shard.time += 2.0  # the reports of all workers are known
        edges[0].enqueue(ticket("poison", readmitted=True, fingerprint=POISON))
        await edges[0].receive("queued")
        with watched_loop() as watchdog:
            for is_confirmed in (False, True):
                scheduler.serve("m", poison_reports=[PoisonReport(fingerprint=POISON, is_confirmed=is_confirmed)])
            assert (await edges[0].receive("shed")).ticket_id == "poison"
            while shard.book.has_due_work(shard.time):
                await all_frames_are_read(edges[0])
        assert watchdog.was_never_held, watchdog


async def test_a_scheduler_attaches_100_workers_with_25_600_leases_and_reports_them():
    async with AsyncExitStack() as stack:
        shard = await stack.enter_async_context(shard_server("q1"))
        scheduler = await stack.enter_async_context(scheduler_of(shard))
        workers = [await stack.enter_async_context(idle_worker(scheduler.address, each)) for each in range(WORKERS)]
        with watched_loop() as watchdog:
            for number, worker in enumerate(workers):
                worker.profile(slots=LEASES, kv_blocks=LEASES, running=leases_of(number))
                await asyncio.sleep(0)
            reported = 0
            while reported < WORKERS * LEASES:
                reported += len((await shard.receive("service_report")).tickets)
        assert len(scheduler.dispatcher.fleet) == WORKERS
        assert watchdog.was_never_held, watchdog


def leases_of(worker):
    return [
        RunningLease(lease_id=f"l{worker}-{each}", kv_blocks=1, ticket_id=f"{worker}-{each}", attempt=1, queue_id="q1")
        for each in range(LEASES)
    ]
