"""Limits of a real Envoy against hostile clients, beside honest streams through the same proxy."""

import asyncio

import pytest

from envoy_proxy import ECHO, Backend, running_front
from raw_http2 import header_block, raw_connection, reset_flood

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


async def test_a_connection_that_only_resets_calls_is_closed(front):
    async with raw_connection(front.port) as connection:
        await connection.send(connection.resets(500, header_block(f"{ECHO}Silent")))
        await connection.closed
