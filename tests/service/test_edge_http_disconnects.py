"""Clients of the OpenAI API that disconnect or do not read, and edges that drain, over real connections."""

import asyncio
import json

import pytest

from edge_http import TIMEOUT_S, http_edge
from openai_calls import CHUNK_BYTES, next_line, wait_until
from penstock.chassis.errors import (
    Overloaded,
)
from penstock.chassis.lifecycle import request_stop
from penstock.chassis.server import sockets
from penstock.edge.lifecycle.effects import Emit


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("is_accepted", [True, False])
async def test_a_disconnect_cancels_the_request(is_stream, is_accepted):
    async with http_edge() as edge:
        pending = asyncio.create_task(edge.post(stream=is_stream))
        call = await edge.gateway.call()
        if is_accepted:
            call.accept()
            call.send("Wa")
            await wait_until(lambda: not call.stream.buffer)
        assert not call.was_left.is_set()
        pending.cancel()
        await call.wait_left()
        with pytest.raises(asyncio.CancelledError):
            await pending
        assert call.disconnects == [False]  # reported before the call was cancelled


async def test_a_disconnect_in_the_middle_of_a_body_releases_it():
    async with http_edge() as edge:
        _, writer = await edge.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: edge\r\ncontent-length: 100\r\n\r\n{")
        await wait_until(lambda: "1 running" in repr(edge.front))
        writer.close()
        await wait_until(lambda: "0 running" in repr(edge.front))
        assert not edge.gateway.was_called


async def test_a_disconnect_before_the_caller_is_known_ends_the_exchange():
    async with http_edge() as edge:
        edge.gateway.holds_identification = True
        _, writer = await edge.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: edge\r\ncontent-length: 100\r\n\r\n")
        await wait_until(lambda: "1 running" in repr(edge.front))
        writer.close()
        await wait_until(lambda: "0 running" in repr(edge.front))
        assert not edge.gateway.was_called


async def test_a_stream_runs_in_one_task():
    async with http_edge() as edge:
        before = asyncio.all_tasks()
        async with edge.unread_stream() as (reader, _, call):
            call.send("Wa")
            await reader.readuntil(b"Wa")
            assert len(asyncio.all_tasks() - before) == 1
            call.finish()
            await reader.readuntil(b"[DONE]")


async def stall(call):
    """Send output until the exchange takes no more. Returns the bytes taken."""
    delta, taken_bytes = Emit("x" * CHUNK_BYTES, [1], 0, ()), 0
    while True:
        call.stream.send_delta(delta)
        for _ in range(1_000):
            if not call.stream.buffer:
                break
            await asyncio.sleep(0)
        else:
            return taken_bytes
        taken_bytes += CHUNK_BYTES
        assert taken_bytes < 64 << 20


async def count_until_done(reader):
    """Count the bytes of x in the rest of a stream."""
    read = b""
    async with asyncio.timeout(TIMEOUT_S):
        while b"[DONE]" not in read[-100:]:
            read += await reader.read(1 << 20)
    return read.count(b"x" * 64) * 64  # alone they are in words like `text`


async def test_a_client_that_does_not_read_holds_back_its_own_stream_alone():
    async with (
        http_edge() as edge,
        edge.unread_stream() as (reader, _, call),
        edge.accepted_stream() as (response, other),
    ):
        taken_bytes = await stall(call)
        other.send("Wa")
        assert '"text":"Wa"' in await next_line(response.aiter_lines())
        call.finish()
        assert await count_until_done(reader) == taken_bytes + CHUNK_BYTES


async def test_a_disconnect_of_a_client_that_does_not_read_is_detected():
    async with http_edge() as edge, edge.unread_stream() as (_, writer, call):
        await stall(call)
        assert not call.was_left.is_set()
        writer.close()
        await call.wait_left()


async def test_a_client_that_never_reads_loses_its_connection(monkeypatch):
    monkeypatch.setattr(sockets, "TCP_USER_TIMEOUT_MS", 500)  # ms
    async with http_edge() as edge, edge.unread_stream() as (_, _, call):
        await stall(call)
        await call.wait_left()


async def test_a_silent_stream_sends_keep_alives():
    async with http_edge(keepalive_interval=0.05) as edge, edge.accepted_stream() as (response, call):
        lines = response.aiter_lines()
        for _ in range(3):
            assert await next_line(lines) == ": waiting"
        call.send("Wa")
        call.finish()
        rest = [line async for line in lines if line.startswith("data:")]
    assert rest[-1] == "data: [DONE]"


async def test_nothing_is_sent_before_the_request_is_accepted():
    async with http_edge(keepalive_interval=0.01) as edge:
        pending = asyncio.create_task(edge.post(stream=True))
        call = await edge.gateway.call()
        await asyncio.sleep(0.05)  # many keep-alive intervals
        call.fail(Overloaded("full", reason="QUEUE_FULL", retry_after=1.0))
        assert (await pending).status_code == 503


async def test_a_drain_lets_streams_end_and_rejects_new_requests():
    async with http_edge(drain_grace=TIMEOUT_S) as edge:
        async with edge.accepted_stream() as (response, call):
            call.send("Wa")
            request_stop("test")
            await edge.wait_connections_refused()
            assert not call.was_left.is_set()
            call.send("ter")
            call.finish()
            text = await response.aread()
        assert text.endswith(b"data: [DONE]\n\n")


async def test_after_the_grace_period_streams_end_in_an_error_and_other_requests_in_a_status():
    async with http_edge(drain_grace=TIMEOUT_S) as edge:
        whole = asyncio.create_task(edge.post())
        unanswered = await edge.gateway.call()
        async with edge.accepted_stream() as (response, call):
            call.send("Wa")
            request_stop("test", grace=0.0)
            text = await response.aread()
        await call.wait_left()
        await unanswered.wait_left()
        assert (await whole).status_code == 503
    assert json.loads(text.decode().split("data: ")[-1])["error"]["code"] == "draining"
    assert (await whole).headers["retry-after-ms"] == "100"


async def test_a_second_request_to_stop_ends_the_waiting():
    async with http_edge(drain_grace=1_000 * TIMEOUT_S) as edge, edge.accepted_stream() as (response, call):
        request_stop("test")
        await edge.wait_connections_refused()
        assert not call.was_left.is_set()
        request_stop("test")
        assert b"draining" in await response.aread()
