"""A mesh waits for the health of its processes, even if a health stream ends."""

import asyncio
import gc

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.chassis.channels import channel
from penstock.local_mesh.processes import _is_serving, wait_serving
from tier_process import address_of, tier_process

SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
NOT_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)


class Silent(health_pb2_grpc.HealthServicer):
    def __init__(self):
        self.watched, self.left = asyncio.Event(), asyncio.Event()

    async def Watch(self, request, context):
        yield NOT_SERVING
        self.watched.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()


class Health(health_pb2_grpc.HealthServicer):
    """Cuts the first stream, and does not end the second."""

    def __init__(self):
        self.watches = 0
        self.left = asyncio.Event()

    async def Watch(self, request, context):
        self.watches += 1
        yield NOT_SERVING
        if self.watches == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
        yield SERVING
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()


async def test_a_health_stream_that_ends_is_reopened_and_the_last_one_is_closed():
    health, server = Health(), grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(20):
        await wait_serving(f"127.0.0.1:{port}")
        await health.left.wait()
        await server.stop(None)
    assert health.watches == 2


async def test_a_cancelled_wait_closes_its_health_stream():
    health, server = Silent(), grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with asyncio.timeout(20), channel(f"127.0.0.1:{port}") as kept:
        waiting = asyncio.create_task(_is_serving(health_pb2_grpc.HealthStub(kept)))
        await health.watched.wait()
        waiting.cancel()
        await health.left.wait()
        await server.stop(None)


async def test_the_connection_is_closed_after_the_wait_without_a_garbage_collection():
    """A process that stops waits for clients that keep their connections open."""
    async with tier_process("scheduler") as scheduler:
        address = await address_of(scheduler)
        gc.disable()
        try:
            async with asyncio.timeout(10):
                await wait_serving(address)
                while is_connected_to(address):  # noqa: ASYNC110  # gRPC closes it in a thread of its own
                    await asyncio.sleep(0.02)
        finally:
            gc.enable()


def is_connected_to(address):
    port = int(address.rpartition(":")[2])
    return any(each.raddr and each.raddr.port == port for each in psutil.Process().net_connections())
