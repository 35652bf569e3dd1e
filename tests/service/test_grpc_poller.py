"""A process whose event loop is held answers pings, also while very many events wait for the loop."""

import asyncio
import sys
import time

import grpc

import held_streams
from penstock.chassis.channels import KEEPALIVE_MS, PING_TIMEOUT_MS
from penstock.chassis.server.server import serving

STREAMS = 400  # more than the bytes that the socket pair of the poller holds, about 280
HELD_S = (KEEPALIVE_MS + PING_TIMEOUT_MS) / 1e3 + 1.0  # the client ends a connection without an answer before


async def test_many_events_that_wait_for_a_held_loop_do_not_end_its_streams():
    received, has_all = 0, asyncio.Event()

    async def read_messages(requests, context):
        nonlocal received
        await context.send_initial_metadata(())
        async for _ in requests:
            received += 1
            if received == STREAMS:
                has_all.set()
        if False:
            yield b""

    def register(_, server):
        _, service, method = held_streams.METHOD.split("/")
        handler = grpc.stream_stream_rpc_method_handler(read_messages)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])

    async with serving("127.0.0.1:0", [(register, None)], drain_grace=0.1) as server:
        pipe = asyncio.subprocess.PIPE
        command = sys.executable, held_streams.__file__, server.address, str(STREAMS)
        client = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        async with asyncio.timeout(20.0):
            assert await client.stdout.readline() == b"open\n"
            client.stdin.write(b"send\n")
            await client.stdin.drain()
            time.sleep(HELD_S)  # noqa: ASYNC251  # holds the loop
            await has_all.wait()
            client.stdin.write(b"count\n")
            assert await client.stdout.readline() == b"0\n", "streams have ended"
            assert await client.wait() == 0
