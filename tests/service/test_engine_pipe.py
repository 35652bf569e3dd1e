"""The front's end of the pipe against a real Connection at the other."""

import asyncio
import socket
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection

import pytest

from penstock.worker.engine_pipe import EnginePipe, encoded


@asynccontextmanager
async def pipe_to_connection():
    ours, theirs = socket.socketpair()
    heard = asyncio.Queue()
    loop = asyncio.get_running_loop()
    transport, pipe = await loop.create_unix_connection(lambda: EnginePipe(heard.put_nowait), sock=ours)
    with Connection(theirs.detach()) as conn:
        yield pipe, heard, conn
    await pipe.lost
    transport.close()


async def test_both_ends_understand_each_other():
    async with pipe_to_connection() as (pipe, heard, conn):
        conn.send({"from": "the engine"})
        assert await heard.get() == {"from": "the engine"}
        pipe.send(["from", "the", "front"])
        assert await asyncio.to_thread(conn.recv) == ["from", "the", "front"]


async def test_a_message_larger_than_any_buffer_holds_up_nobody():
    prompt = list(range(300_000))
    async with pipe_to_connection() as (pipe, heard, conn):
        pipe.send(prompt)  # returns, though the engine reads nothing yet
        sending = asyncio.create_task(asyncio.to_thread(conn.send, prompt))
        assert await heard.get() == prompt
        await sending
        assert await asyncio.to_thread(conn.recv) == prompt


@pytest.mark.parametrize("size", [1, 3, 4, 7, 1000])
async def test_messages_come_whole_however_they_are_cut(size):
    heard = []
    pipe = EnginePipe(heard.append)
    stream = b"".join(encoded(f"message {number}") for number in range(20))
    for start in range(0, len(stream), size):
        pipe.data_received(stream[start : start + size])
    assert heard == [f"message {number}" for number in range(20)]
