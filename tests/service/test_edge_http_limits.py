"""Hostile and slow clients on the edge's own HTTP port: what they may send, hold and keep open."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import orjson
import pytest

from edge_http import TIMEOUT_S, http_edge
from openai_calls import wait_until
from penstock.chassis.errors import Unauthenticated
from penstock.edge.api.http.connections import ConnectionLimits
from penstock.edge.api.http.protocol import HttpDoor
from penstock.edge.request import limits

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: e\r\n"
UNKNOWN = Unauthenticated("no such key", reason="KEY_UNKNOWN")


@asynccontextmanager
async def bounded_edge(**given):
    """An edge whose listener has the limits `given`; `edge.door` counts its connections."""
    door = HttpDoor(ConnectionLimits(**given))
    async with http_edge(door=door) as edge:
        edge.door = door
        yield edge


@asynccontextmanager
async def connected(edge, *sent):
    reader, writer = await edge.connect()
    for each in sent:
        writer.write(each)
    try:
        yield reader, writer
    finally:
        await close(writer)


async def close(writer):
    """Close a connection, even if the server has closed it or does not read."""
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def answer_of(reader):
    """Return status, reason and error code of a response after which the server closes the connection."""
    async with asyncio.timeout(TIMEOUT_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    lines = head.decode().splitlines()
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert headers["connection"] == "close"
    return int(lines[0].split()[1]), headers["x-penstock-reason"], orjson.loads(body)["error"]["code"]


async def wait_closed(reader):
    async with asyncio.timeout(TIMEOUT_S):
        await reader.read()


async def is_served(edge):
    return (await edge.http.get("/health")).status_code == 200


def overdue_after(edge, seconds):
    """Check all connections as if `seconds` had passed."""
    edge.door.sweep(asyncio.get_running_loop().time() + seconds)


# Headers.


async def write_until_closed(writer, line, most):
    """Write `line` again and again, up to `most` bytes. Returns the bytes written before the server closed."""
    written = 0
    try:
        while written < most:
            writer.write(line)
            await writer.drain()
            written += len(line)
    except ConnectionError:
        pass
    return written


async def test_a_header_line_without_end_is_refused_at_64_kib():
    async with bounded_edge() as edge, connected(edge, HEAD, b"x-long: ") as (reader, writer):
        writer.write(b"x" * limits.HEAD_BYTES)
        assert await answer_of(reader) == (431, "headers_too_large", "headers_too_large")
        assert edge.door.table.refused["HEADERS_TOO_LARGE"] == 1
        assert edge.door.table.unidentified_bytes == 0
        assert await is_served(edge)


async def test_a_header_line_of_64_mib_is_never_read():
    async with bounded_edge() as edge, connected(edge, HEAD, b"x-long: ") as (_, writer):
        assert await write_until_closed(writer, b"x" * (1 << 20), most=64 << 20) < 32 << 20
        await wait_until(lambda: edge.door.table.connections == 0)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"x-long: " + b"x" * limits.HEAD_BYTES + b"\r\n", id="one large header"),
        pytest.param(b"x-many: y\r\n" * (limits.HEADERS + 1), id="many headers"),
    ],
)
async def test_complete_headers_beyond_the_limits_are_refused(headers):
    async with bounded_edge() as edge, connected(edge, HEAD + headers + b"\r\n") as (reader, _):
        assert (await answer_of(reader))[:2] == (431, "headers_too_large")
        assert not edge.gateway.was_called


async def test_headers_just_below_the_limits_are_read():
    async with bounded_edge() as edge:
        headers = {f"x-{number}": "y" * 300 for number in range(200)}
        assert (await edge.http.get("/health", headers=headers)).status_code == 200


async def test_trailers_without_end_close_the_connection():
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-long: "
    async with bounded_edge() as edge, connected(edge, chunked) as (_, writer):
        assert await write_until_closed(writer, b"x" * (1 << 20), most=64 << 20) < 32 << 20


async def test_half_headers_are_refused_after_their_time():
    async with bounded_edge() as edge, connected(edge, HEAD) as (reader, _):
        await wait_until(lambda: edge.door.table.unidentified_bytes == len(HEAD))
        overdue_after(edge, 9.0)
        assert edge.door.table.connections == 1
        overdue_after(edge, 11.0)
        assert await answer_of(reader) == (408, "headers_stalled", "headers_stalled")


async def test_headers_that_arrive_a_byte_at_a_time_get_no_more_time():
    async with bounded_edge() as edge, connected(edge, HEAD) as (reader, writer):
        table = edge.door.table
        await wait_until(lambda: table.unidentified_bytes == len(HEAD))
        overdue_after(edge, 9.0)
        writer.write(b"x")
        await wait_until(lambda: table.unidentified_bytes == len(HEAD) + 1)
        overdue_after(edge, 11.0)
        assert (await answer_of(reader))[:2] == (408, "headers_stalled")


async def test_half_of_a_second_request_is_refused_after_its_time():
    async with bounded_edge() as edge, connected(edge, b"GET /health HTTP/1.1\r\nhost: e\r\n\r\n") as (reader, writer):
        await reader.readuntil(b"}")
        writer.write(HEAD)
        await wait_until(lambda: edge.door.table.unidentified_bytes == len(HEAD))
        overdue_after(edge, 11.0)
        assert (await answer_of(reader))[:2] == (408, "headers_stalled")


# Idle connections.


async def test_silent_connections_are_closed_and_connections_of_known_callers_stay():
    async with bounded_edge() as edge, connected(edge) as (silent, _):
        await edge.http.get("/v1/models")
        await wait_until(lambda: edge.door.table.connections == 2)
        overdue_after(edge, 74.0)
        assert edge.door.table.connections == 2
        overdue_after(edge, 76.0)
        await wait_closed(silent)
        assert edge.door.table.connections == 1
        assert edge.door.table.refused["CONNECTION_IDLE"] == 1


async def test_the_idle_connection_of_a_stranger_is_closed():
    async with bounded_edge() as edge:
        edge.gateway.auth_rejection = UNKNOWN
        assert (await edge.post()).status_code == 401
        overdue_after(edge, 76.0)
        await wait_until(lambda: edge.door.table.connections == 0)


async def test_a_listener_for_a_proxy_keeps_idle_connections():
    async with bounded_edge(idle_timeout=0.0, max_connections_per_source=0) as edge, connected(edge):
        await wait_until(lambda: edge.door.table.connections == 1)
        overdue_after(edge, 100_000.0)
        assert edge.door.table.connections == 1


async def test_a_long_answer_is_not_overdue():
    async with bounded_edge() as edge, edge.accepted_stream() as (response, call):
        overdue_after(edge, 3_000.0)
        call.send("Wa")
        call.finish()
        assert (await response.aread()).endswith(b"data: [DONE]\n\n")


# Connections.


async def test_one_source_has_a_share_of_the_connections():
    async with bounded_edge(max_connections_per_source=3) as edge, AsyncExitStack() as stack:
        taken = [await stack.enter_async_context(connected(edge)) for _ in range(3)]
        async with connected(edge) as (reader, _):
            assert (await answer_of(reader))[:2] == (503, "source_connections_full")
        await close(taken[0][1])
        await wait_until(lambda: edge.door.table.connections == 2)
        assert await is_served(edge)


async def test_connections_are_bounded_in_total():
    async with (
        bounded_edge(max_connections=2) as edge,
        connected(edge),
        connected(edge),
        connected(edge) as (reader, _),
    ):
        assert (await answer_of(reader))[:2] == (503, "connections_full")


# Bodies of callers that are not known.


def body_head(size):
    return HEAD + f"content-length: {size}\r\n\r\n".encode()


async def test_large_bodies_of_strangers_do_not_shut_the_edge_for_others():
    """16 bodies of 16 MiB less 10 bytes and 40 small ones, which all wait for their last bytes."""
    async with bounded_edge() as edge, AsyncExitStack() as stack:
        edge.gateway.auth_rejection = UNKNOWN
        for size in [limits.BODY_BYTES] * 16 + [1_000] * 40:
            reader, writer = await stack.enter_async_context(connected(edge))
            writer.write(body_head(size) + b" " * (size - 10))
            assert int((await reader.readline()).split()[1]) == 401  # before the body has arrived
        assert edge.front.body_bytes_held == edge.door.table.unidentified_bytes == 0
        edge.gateway.auth_rejection = None
        pending = asyncio.create_task(edge.post())
        call = await edge.gateway.call()
        call.accept()
        call.finish()
        assert (await pending).status_code == 200
        overdue_after(edge, 11.0)  # the rest of those bodies is not awaited for ever
        await wait_until(lambda: edge.door.table.connections == 1)


async def test_no_body_is_read_while_its_caller_is_being_identified():
    async with bounded_edge() as edge:
        edge.gateway.holds_identification = True
        async with connected(edge, body_head(limits.BODY_BYTES)) as (reader, writer):
            await wait_until(lambda: edge.gateway.authenticated)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await write_until_closed(writer, b" " * (1 << 20), most=limits.BODY_BYTES)
            assert 0 < edge.door.table.unidentified_bytes <= 512 << 10
            edge.gateway.auth_rejection = UNKNOWN
            edge.gateway.release_identification()
            assert int((await reader.readline()).split()[1]) == 401
        await wait_until(lambda: edge.door.table.unidentified_bytes == 0)


async def test_bytes_held_for_strangers_have_one_budget():
    async with bounded_edge(max_unidentified_bytes=100) as edge, connected(edge, HEAD) as (_, first):
        await wait_until(lambda: edge.door.table.unidentified_bytes == len(HEAD))
        async with connected(edge, HEAD + b"x-more: " + b"y" * 60) as (reader, _):
            assert (await answer_of(reader))[:2] == (503, "edge_full")
        await close(first)
        await wait_until(lambda: edge.door.table.unidentified_bytes == 0)
        assert await is_served(edge)


async def test_a_key_is_the_first_check_of_any_body():
    async with bounded_edge() as edge:
        edge.gateway.auth_rejection = UNKNOWN
        for body in (b"{", b"[" * 100, b"", b'{"n": 3}'):
            assert (await edge.http.post("/v1/completions", content=body)).status_code == 401
        edge.gateway.auth_rejection = None
        assert (await edge.http.post("/v1/completions", content=b"{")).status_code == 400


# Bodies of known callers.


async def test_a_body_below_the_least_rate_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "BODY_GRACE_S", 0.1)
    async with bounded_edge() as edge, connected(edge, body_head(limits.BODY_BYTES)) as (reader, writer):
        dripping = asyncio.create_task(drip(writer))
        async with asyncio.timeout(TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        dripping.cancel()
        assert b" 408 " in head
        assert b"x-penstock-reason: BODY_TOO_SLOW" in head
        assert edge.front.body_bytes_held == 0


async def drip(writer):
    while True:
        writer.write(b" ")
        await asyncio.sleep(0.01)


async def test_a_body_at_the_least_rate_is_read(monkeypatch):
    monkeypatch.setattr(limits, "BODY_GRACE_S", 0.1)
    body = b'{"prompt":"hi"' + b" " * 4_000 + b"}"
    async with bounded_edge() as edge, connected(edge, body_head(len(body))) as (reader, writer):
        for start in range(0, len(body), 500):
            writer.write(body[start : start + 500])
            await asyncio.sleep(0.05)
        call = await edge.gateway.call()
        call.accept()
        call.finish()
        assert b" 200 " in await reader.readline()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" + b"[]," * ((limits.BODY_BYTES - 10) // 3) + b"1]", id="16 MiB of empty lists"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"prompt":["' + b'","' * 400_000 + b'"]}', id="many strings"),
    ],
)
async def test_a_body_that_would_take_long_to_parse_is_refused_before(body):
    async with bounded_edge() as edge:
        response = await edge.http.post("/v1/completions", content=body)
    assert (response.status_code, response.headers["x-penstock-reason"]) == (400, "BODY_TOO_COMPLEX")


async def test_a_prompt_of_the_most_token_ids_is_parsed():
    body = b'{"prompt":[' + b",".join([b"31999"] * limits.PROMPT_TOKENS) + b"]}"
    async with bounded_edge() as edge:
        pending = asyncio.create_task(edge.http.post("/v1/completions", content=body))
        call = await edge.gateway.call()
        assert len(call.spec.input.ids) == limits.PROMPT_TOKENS
        call.accept()
        call.finish()
        assert (await pending).status_code == 200
