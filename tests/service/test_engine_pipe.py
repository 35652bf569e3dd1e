"""Both ends of the pipe between worker and engine, over a real socket."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from penstock.worker.engine.host.pipe import MAX_UNSENT_BYTES, HostGone, HostPipe, MessageDecoder, encode_message
from penstock.worker.engine_host.pipe import EnginePipe


@asynccontextmanager
async def both_ends():
    ours, theirs = socket.socketpair()
    received = asyncio.Queue()
    engine = HostPipe(theirs)
    transport, front = await asyncio.get_running_loop().create_unix_connection(
        lambda: EnginePipe(received.put_nowait), sock=ours
    )
    yield front, received, engine
    engine.close()
    await front.closed
    transport.close()


def next_message(engine):
    while not (messages := engine.receive()):
        engine.wait()
    [message] = messages
    return message


async def test_messages_arrive_in_both_directions():
    async with both_ends() as (front, received, engine):
        engine.send({"from": "the engine"})
        assert await received.get() == {"from": "the engine"}
        front.send(["from", "the", "front"])
        assert await asyncio.to_thread(next_message, engine) == ["from", "the", "front"]


async def test_a_message_larger_than_any_buffer_blocks_neither_side():
    prompt = list(range(300_000))
    async with both_ends() as (front, received, engine):
        front.send(prompt)  # returns, though the engine reads nothing yet
        engine.send(prompt)  # returns, though the front reads nothing yet
        assert await asyncio.to_thread(next_message, engine) == prompt
        await asyncio.to_thread(engine.flush, 10.0)
        assert await received.get() == prompt


def test_an_engine_whose_worker_does_not_read_never_waits_and_loses_no_message():
    ours, theirs = socket.socketpair()
    engine, front = HostPipe(theirs), HostPipe(ours)
    sent = 0
    while not engine.is_full:
        engine.send((sent, bytes(1000)))  # would block for ever if it could block
        sent += 1
    assert sent * 1100 > MAX_UNSENT_BYTES
    received = []
    while len(received) < sent:
        received += front.receive()
        engine.receive()  # sends on
    assert [number for number, _ in received] == list(range(sent))
    assert not engine.is_full
    engine.close(), front.close()


def test_a_flush_ends_if_the_worker_does_not_read():
    ours, theirs = socket.socketpair()
    engine = HostPipe(theirs)
    engine.send(bytes(MAX_UNSENT_BYTES))
    engine.flush(0.01)
    ours.close()
    with pytest.raises(HostGone):
        engine.flush(0.01)
    engine.close()


def test_reading_and_writing_fail_if_the_worker_is_gone():
    ours, theirs = socket.socketpair()
    engine = HostPipe(theirs)
    ours.close()
    with pytest.raises(HostGone):
        engine.receive()
    with pytest.raises(HostGone):
        engine.send("a message")
    engine.close()


@pytest.mark.parametrize("size", [1, 3, 4, 7, 1000])
def test_messages_are_decoded_from_chunks_of_any_size(size):
    unframer = MessageDecoder()
    stream = b"".join(encode_message(f"message {number}") for number in range(20))
    received = []
    for start in range(0, len(stream), size):
        received += unframer.feed(stream[start : start + size])
    assert received == [f"message {number}" for number in range(20)]
