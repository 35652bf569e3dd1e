"""A queue shard as its own process: it stays small under many tickets, and ends on request."""

import asyncio
import signal
from contextlib import asynccontextmanager

import psutil
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from penstock.chassis.channels import channel
from penstock.v1.admin_pb2 import GetSnapshotRequest
from penstock.v1.admin_pb2_grpc import AdminStub
from queue_streams import edge_at, scheduler_at, ticket
from tier_process import address_of, tier_process, wait_for_event

TIMEOUT_S = 60.0
TICKET_COUNT = 100_000
AT_ONCE = 500  # tickets in a frame
MEGABYTE = 1_000_000
PREFIX_HASHES = 32  # of a prompt of 512 tokens


@asynccontextmanager
async def queue_process(**settings):
    async with tier_process("queue", **settings) as process:
        yield process, await address_of(process)


async def figures_of(address):
    async with channel(address) as to_shard:
        return (await AdminStub(to_shard).GetSnapshot(GetSnapshotRequest())).snapshot.figures


def typical(number):
    """Tickets as an edge makes them: separate IDs and shared names."""
    return ticket(
        f"01JD{number:022d}",
        tenant_id=f"tenant-{number % 200}",
        priority=1 + number % 3,
        prompt_tokens=200 + number % 4_000,
        max_output_tokens=512,
        time_left_nanos=3_600_000_000_000 + number,
        prefix_hashes=[(number * 31 + block) * 0x9E3779B97F4A7C15 % 2**64 for block in range(PREFIX_HASHES)],
        traceparent=f"00-{number:032x}-{number:016x}-01",
    )


@pytest.mark.alone
async def test_a_hundred_thousand_waiting_tickets_fit_into_200_megabytes():
    without_target = {"TTFT_INTERACTIVE": "0"}  # or the first tickets are rejected while a slow machine sends the last
    async with (
        queue_process(**without_target) as (process, address),
        scheduler_at(address),
        edge_at(address) as edge,
    ):
        for first in range(0, TICKET_COUNT, AT_ONCE):
            edge.enqueue(*(typical(number) for number in range(first, first + AT_ONCE)))
            for _ in range(AT_ONCE):
                await edge.receive("queued")
        figures = await figures_of(process.admin_address)
        assert figures["waiting"] == TICKET_COUNT
        assert psutil.Process(process.pid).memory_info().rss < 200 * MEGABYTE


async def test_a_shard_is_ready_once_a_scheduler_can_place_its_tickets():
    async with queue_process() as (_, address), channel(address) as to_shard:
        health = HealthStub(to_shard)
        assert (await health.Check(HealthCheckRequest())).status == HealthCheckResponse.NOT_SERVING
        async with scheduler_at(address), asyncio.timeout(TIMEOUT_S):
            async for answer in health.Watch(HealthCheckRequest()):
                if answer.status == HealthCheckResponse.SERVING:
                    break


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stopped_shard_sends_end_to_all_peers_and_exits_with_0(number):
    async with (
        queue_process() as (process, address),
        scheduler_at(address) as scheduler,
        edge_at(address) as edge,
    ):
        edge.enqueue(ticket("a"))
        await edge.receive("queued")
        process.send_signal(number)
        assert (await edge.receive("end")).reason == "drained"
        assert (await scheduler.receive("end")).reason == "drained"
        assert await wait_for_event(process, "drained")
        assert await process.wait() == 0
