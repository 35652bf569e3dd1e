"""A client with many streams to one server: `python held_streams.py ADDRESS STREAMS`.

It writes a line once all streams are open. At a line on standard input, it sends a message on each stream, and at the
next line it writes how many of them have ended.
"""

import asyncio
import sys

from penstock.chassis.channels import channel

METHOD = "/test.Held/Streams"


async def run(address, streams):
    async with channel(address) as to_server:
        calls = [to_server.stream_stream(METHOD)() for _ in range(streams)]
        await asyncio.gather(*(call.initial_metadata() for call in calls))
        answer("open")
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(call.write(b"message") for call in calls))
        await asyncio.to_thread(sys.stdin.readline)
        answer(sum(call.done() for call in calls))


def answer(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
