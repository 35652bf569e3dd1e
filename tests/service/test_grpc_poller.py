"""A process whose event loop is held answers pings, also while very many events wait for the loop."""

import asyncio
import sys
from contextlib import asynccontextmanager

import held_streams
from penstock.chassis.channels import KEEPALIVE_MS, PING_TIMEOUT_MS

STREAMS = 400  # more than the bytes that the socket pair of the poller holds, about 280
HELD_S = (KEEPALIVE_MS + PING_TIMEOUT_MS) / 1e3 + 1.0  # the client ends a connection without an answer before
TIMEOUT_S = 30.0


class Program:
    """A process of `held_streams` whose standard input takes commands."""

    def __init__(self, process):
        self.process = process

    async def line(self):
        return (await self.process.stdout.readline()).decode().strip()

    def command(self):
        self.process.stdin.write(b"\n")


@asynccontextmanager
async def program(*arguments):
    pipe = asyncio.subprocess.PIPE
    command = sys.executable, held_streams.__file__, *map(str, arguments)
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
    async with asyncio.timeout(TIMEOUT_S), program("serve", STREAMS, HELD_S) as server:
        while not (address := await server.line()).startswith("127.0.0.1:"):
            pass
        async with program("send", STREAMS, address) as client:
            assert await client.line() == "open"
            client.command()
            server.command()
            assert await last_line(server) == str(STREAMS)
            client.command()
            assert await client.line() == "0", "streams have ended"
