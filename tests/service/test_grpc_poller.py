"""A process whose event loop is held answers pings, also while very many events wait for the loop.

So does an application that uses the SDK: an edge lives, whatever holds the loop of the application.
"""

import asyncio
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import held_answers
import held_streams
from client_edges import accepted_of, delta_of, finished_of
from inference_server import inference_server
from penstock.chassis.channels import KEEPALIVE_MS, PING_TIMEOUT_MS
from penstock.v1.inference_pb2 import GenerateResponse

STREAMS = 400  # more than the bytes that the socket pair of the poller holds, about 280
HELD_S = (KEEPALIVE_MS + PING_TIMEOUT_MS) / 1e3 + 1.0  # the client ends a connection without an answer before
TIMEOUT_S = 30.0


class Program:
    """A process whose standard input takes commands."""

    def __init__(self, process):
        self.process = process

    async def line(self):
        return (await self.process.stdout.readline()).decode().strip()

    def command(self):
        self.process.stdin.write(b"\n")


@asynccontextmanager
async def program(module, *arguments):
    pipe = asyncio.subprocess.PIPE
    command = sys.executable, module.__file__, *map(str, arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def last_line(running):
    """Return the last line that is not a log line."""
    while (line := await running.line()) and not line.isdigit():
        pass
    return line


async def test_many_events_that_wait_for_a_held_loop_do_not_end_its_streams():
    async with asyncio.timeout(TIMEOUT_S), program(held_streams, "serve", STREAMS, HELD_S) as server:
        while not (address := await server.line()).startswith("127.0.0.1:"):
            pass
        async with program(held_streams, "send", STREAMS, address) as client:
            assert await client.line() == "open"
            client.command()
            server.command()
            assert await last_line(server) == str(STREAMS)
            client.command()
            assert await client.line() == "0", "streams have ended"


async def test_an_application_that_holds_its_loop_loses_no_answer_of_an_edge_that_lives():
    is_held = asyncio.Event()

    async def generate(request, context):
        yield GenerateResponse(accepted=accepted_of(request))
        yield GenerateResponse(delta=delta_of(len(request.resume.token_ids)))
        await is_held.wait()
        for index in range(len(request.resume.token_ids) + 1, 6):
            yield GenerateResponse(delta=delta_of(index))
        yield GenerateResponse(finished=finished_of(0))

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(TIMEOUT_S))
        _, server = await stack.enter_async_context(inference_server(Generate=generate))
        client = await stack.enter_async_context(program(held_answers, STREAMS, HELD_S, server.address))
        assert await client.line() == "open"
        client.command()
        is_held.set()
        assert await client.line() == str(STREAMS), "answers took further attempts"
