"""Limits of a real Envoy against hostile clients, beside honest streams through the same proxy."""

import asyncio

import grpc
import pytest

from envoy_proxy import ECHO, Backend, running_front
from raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PRIORITY,
    WINDOW_UPDATE,
    frame,
    header_block,
    raw_connection,
    reset_flood,
)

HONEST_STREAMS = 20


@pytest.fixture
async def front(tmp_path):
    async with running_front(tmp_path, Backend("a")) as front:
        yield front


@pytest.fixture
async def honest(front):
    """Streams that have started; each must still deliver its second message."""
    calls = [front.calls.unary_stream(f"{ECHO}Stream")(b"") for _ in range(HONEST_STREAMS)]
    assert {await call.read() for call in calls} == {b"a first"}
    return calls


async def endings(front, calls):
    front.backends[0].may_continue.set()
    answers = await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)
    return [answer if isinstance(answer, bytes) else repr(answer) for answer in answers]


async def test_six_thousand_reset_calls_end_no_stream_of_another_client(front, honest):
    await reset_flood(front.port, header_block(f"{ECHO}Silent"), resets=6_000)
    assert await endings(front, honest) == [b"a second"] * HONEST_STREAMS


async def test_calls_that_are_reset_after_the_proxy_has_read_them_end_no_stream_of_another_client(front, honest):
    block = header_block(f"{ECHO}Silent")
    for _ in range(15):
        async with raw_connection(front.port) as connection:
            for _ in range(4):  # below the limits of one connection
                await connection.reset_read_calls(50, block)
    assert await endings(front, honest) == [b"a second"] * HONEST_STREAMS


async def test_a_connection_that_only_resets_calls_is_closed(front):
    async with raw_connection(front.port) as connection:
        await connection.send(connection.resets(500, header_block(f"{ECHO}Silent")))
        await connection.closed


# Frames after the headers of stream 1, of each of which a well-behaved client sends few.
FLOODS = {
    "empty data": frame(DATA, 0, 1) * 50,
    "priority": frame(PRIORITY, 0, 1, bytes(5)) * 500,
    "window updates": frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4)) * 500,
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_of_frames_closes_its_connection_only(front, honest, flood):
    async with raw_connection(front.port) as connection:
        opening = frame(HEADERS, END_HEADERS, 1, header_block(f"{ECHO}Silent"))
        await connection.send(opening + FLOODS[flood])
        await connection.closed
    assert await endings(front, honest) == [b"a second"] * HONEST_STREAMS


@pytest.mark.parametrize(
    "headers", [[("x-large", "x" * 40_000)], [(f"x-{number}", "x") for number in range(100)]], ids=["bytes", "number"]
)
async def test_headers_beyond_the_limit_reach_no_edge(front, headers):
    async with raw_connection(front.port) as connection:
        block = header_block(f"{ECHO}Unary", *headers)
        chunks = [block[start : start + 16_000] for start in range(0, len(block), 16_000)]
        last = len(chunks) - 1
        for index, chunk in enumerate(chunks):
            kind, flags = (CONTINUATION if index else HEADERS), (END_HEADERS if index == last else 0)
            await connection.send(frame(kind, flags, 1, chunk))
        await connection.send(frame(DATA, END_STREAM, 1, bytes(5)))
        await connection.stream_ended.wait()
    assert front.backends[0].calls == []


async def test_a_connection_has_at_most_the_set_number_of_calls_at_once(tmp_path):
    async with running_front(tmp_path, Backend("a"), MAX_STREAMS_PER_CONNECTION=3) as front:
        calls = [front.calls.unary_stream(f"{ECHO}Stream")(b"") for _ in range(3)]
        assert {await call.read() for call in calls} == {b"a first"}
        fourth = asyncio.create_task(front.calls.unary_stream(f"{ECHO}Stream")(b"").read())
        async with front.channel(own=1) as other:
            assert await other.unary_stream(f"{ECHO}Stream")(b"").read() == b"a first"
        assert not fourth.done()
        front.backends[0].may_continue.set()
        assert {await call.read() for call in calls} == {b"a second"}
        assert {await call.code() for call in calls} == {grpc.StatusCode.OK}
        assert await fourth == b"a first"
