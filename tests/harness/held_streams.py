"""Two programs: a server that holds its event loop while very many messages arrive, and their sender.

`python held_streams.py serve STREAMS HELD_S` writes its address, holds its loop at a line on standard input, and writes
the number of messages once it has one of each stream. `python held_streams.py send STREAMS ADDRESS` writes a line once
all streams are open, sends a message on each at a line on standard input, and at the next line writes how many streams
have ended.
"""

import asyncio
import sys
import time

import grpc

from penstock.chassis.channels import channel
from penstock.chassis.lifecycle import run

SERVICE, METHOD = "test.Held", "Streams"


def answer(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def command():
    await asyncio.to_thread(sys.stdin.readline)


async def serve(streams, held_s):
    received, has_all = 0, asyncio.Event()

    async def read_messages(requests, context):
        nonlocal received
        await context.send_initial_metadata(())
        async for _ in requests:
            received += 1
            if received == streams:
                has_all.set()
        yield b""

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(read_messages)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    answer(f"127.0.0.1:{port}")
    await command()
    time.sleep(held_s)  # noqa: ASYNC251  # holds the loop
    await has_all.wait()
    answer(received)
    await command()
    await server.stop(0.1)


async def send(streams, address):
    async with channel(address) as to_server:
        calls = [to_server.stream_stream(f"/{SERVICE}/{METHOD}")() for _ in range(streams)]
        await asyncio.gather(*(call.initial_metadata() for call in calls))
        answer("open")
        await command()
        await asyncio.gather(*(call.write(b"message") for call in calls))
        await command()
        answer(sum(call.done() for call in calls))


if __name__ == "__main__":
    program, count, argument = sys.argv[1:]
    if program == "serve":
        run(lambda: serve(int(count), float(argument)))
    else:
        run(lambda: send(int(count), argument))
