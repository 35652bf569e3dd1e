"""gRPC over HTTP/2 toward clients of the public: compression, many calls on one connection, and their limits."""

import asyncio
import gc
import gzip
import zlib
from dataclasses import replace

import grpc
import pytest
from hyperframe.frame import PingFrame

from http2_echo import HEADERS, LIMITS, MESSAGE_BYTES, core_channel, echo_server, headers_to, raw_client, stream_of
from penstock.chassis.http2 import frames, headers
from penstock.chassis.http2.context import CallContext
from penstock.chassis.http2.messages import prefixed
from penstock.chassis.http2.server_connection import MAX_IDLE_SWEEPS
from penstock.chassis.http2.stream import Stream
from penstock.proofs.hostile.wire.http2 import data_frame, header_block, headers_frame, reset_frame

WINDOW_BYTES = 64 << 10
TIMEOUT_S = 10.0


def compressed(data):
    return b"\1" + len(data).to_bytes(4, "big") + data


async def ended(client, stream):
    async with asyncio.timeout(TIMEOUT_S):
        while not client.answers[stream].has_ended:
            client.answers[stream].changed.clear()
            await client.answers[stream].changed.wait()
    return client.answers[stream]


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_client_of_the_c_core_may_compress_its_messages(compression):
    async with echo_server() as (_, _echo, port), core_channel(port) as to_server:
        call = stream_of(to_server)(compression=compression)
        for message in (b"", b"x" * 100_000, b"short"):
            await call.write(message)
            assert await call.read() == message
        call.cancel()


@pytest.mark.parametrize(
    ("encoding", "data", "status", "text"),
    [
        ("gzip", gzip.compress(bytes(MESSAGE_BYTES + 1)), grpc.StatusCode.RESOURCE_EXHAUSTED, "at most"),
        ("gzip", b"not compressed", grpc.StatusCode.INVALID_ARGUMENT, "decompressed"),
        ("deflate", zlib.compress(b"cut short")[:-1], grpc.StatusCode.INVALID_ARGUMENT, "decompressed"),
        ("snappy", b"x", grpc.StatusCode.UNIMPLEMENTED, "gzip"),
        ("identity", b"x", grpc.StatusCode.UNIMPLEMENTED, "gzip"),
    ],
)
async def test_a_compressed_message_that_cannot_be_read_is_refused(encoding, data, status, text):
    async with echo_server() as (server, _echo, port), raw_client(port) as client:
        stream = await client.open_stream([*HEADERS, ("grpc-encoding", encoding)])
        await client.send_data(stream, compressed(data), ends=True)
        answer = await ended(client, stream)
        assert answer.header(b"grpc-status") == str(status.value[0])
        assert text in answer.header(b"grpc-message")
        assert (answer.header(b"grpc-accept-encoding") == "gzip,deflate,identity") is (
            status is grpc.StatusCode.UNIMPLEMENTED
        )
        assert len(server.connections) == 1


async def test_a_compressed_message_that_no_one_reads_is_held_as_it_was_sent():
    async with echo_server() as (server, echo, port), raw_client(port) as client:
        echo.may_read.clear()
        data = gzip.compress(bytes(MESSAGE_BYTES))
        stream = await client.open_stream([*HEADERS, ("grpc-encoding", "gzip")])
        await client.send_data(stream, compressed(data))
        (connection,) = server.connections
        await echo.until(lambda: echo.running and connection.streams[stream].held_bytes)
        assert connection.streams[stream].held_bytes == len(data)


async def test_cancels_of_calls_that_are_being_served_do_not_end_the_connection():
    async with echo_server() as (server, echo, port), raw_client(port) as client:
        for _ in range(headers.MAX_CONTROL_FRAMES // 100 + 5):
            streams = [await client.open_stream(HEADERS) for _ in range(100)]
            for stream in streams:
                while not client.answers[stream].headers:
                    client.answers[stream].changed.clear()
                    await client.answers[stream].changed.wait()
            await client.send(b"".join(map(reset_frame, streams)))
        await echo.until(lambda: not echo.running)
        assert not client.closed.is_set()
        assert len(server.connections) == 1


async def test_a_client_may_send_a_ping_for_each_message_that_it_receives(monkeypatch):
    """Clients of gRPC measure the bandwidth in this way."""
    async with echo_server() as (_, _echo, port), raw_client(port) as client:
        stream = await client.open_stream(HEADERS)
        ping = PingFrame(0, b"12345678").serialize()
        monkeypatch.setattr(headers, "MAX_CONTROL_FRAMES", 10)
        count = 100
        async with asyncio.timeout(TIMEOUT_S):
            for number in range(count):
                await client.send(data_frame(stream, prefixed(b"x")))
                while len(client.answers[stream].data) < 6 * (number + 1):
                    client.answers[stream].changed.clear()
                    await client.answers[stream].changed.wait()
                await client.send(ping)
        assert not client.closed.is_set()
        assert client.counts[frames.PING] >= count - 1


async def test_a_stream_that_no_one_reads_takes_a_window_and_one_that_is_read_takes_its_message_at_once():
    async with (
        echo_server(replace(LIMITS, window_bytes=WINDOW_BYTES)) as (server, echo, port),
        raw_client(port) as client,
    ):
        echo.may_read.clear()
        stream = await client.open_stream(HEADERS)
        sending = asyncio.ensure_future(client.send_data(stream, prefixed(bytes(MESSAGE_BYTES))))
        (connection,) = server.connections
        await echo.until(lambda: echo.running and connection.streams[stream].held_bytes >= WINDOW_BYTES)
        await asyncio.sleep(0.05)
        assert connection.streams[stream].held_bytes == WINDOW_BYTES
        before = client.counts[frames.WINDOW_UPDATE]
        echo.may_read.set()
        await sending
        await echo.until(lambda: len(client.answers[stream].data) >= 1 << 16)
        assert client.counts[frames.WINDOW_UPDATE] - before <= 3  # of the message, of the next one, of the connection


PARTIAL = {
    "the preface": frames.PREFACE[:10],
    "a frame of headers": headers_frame(1, header_block(HEADERS))[:-5],
    "a block of headers": headers_frame(1, header_block(HEADERS), ends_headers=False),
}


@pytest.mark.parametrize("name", PARTIAL)
async def test_headers_that_stay_incomplete_end_their_connection_and_no_other(name):
    async with echo_server() as (server, echo, port), raw_client(port) as honest:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        start = b"" if name == "the preface" else frames.PREFACE + frames.settings({})
        writer.write(start + PARTIAL[name])
        await echo.until(lambda: sum(each.has_partial_headers for each in server.connections) == 1)
        server._sweep_silent()
        assert len(server.connections) == 2
        server._sweep_silent()
        assert len(server.connections) == 1
        stream = await honest.open_stream(headers_to("Unary"))
        await honest.send_data(stream, prefixed(b"x"), ends=True)
        assert (await ended(honest, stream)).header(b"grpc-status") == "0"
        writer.close()


async def test_a_client_without_calls_is_told_before_its_connection_is_closed():
    async with echo_server() as (server, echo, port), raw_client(port) as client:
        await echo.until(lambda: server.connections)
        (connection,) = server.connections
        for _ in range(MAX_IDLE_SWEEPS + 1):
            assert client.goaway_code is None
            server._sweep_silent()
            await client.send(PingFrame(0, b"12345678").serialize())
            await echo.until(lambda: connection.has_received)
        await echo.until(lambda: client.goaway_code is not None)
        assert client.goaway_code == 0
        late = await client.open_stream(HEADERS)
        assert (await ended(client, late)).reset_code == frames.ErrorCode.REFUSED_STREAM
        assert not echo.running
        server._sweep_silent()
        async with asyncio.timeout(TIMEOUT_S):
            await client.closed.wait()


async def test_a_client_of_the_c_core_calls_again_after_its_idle_connection_was_closed():
    async with echo_server() as (server, _echo, port), core_channel(port) as to_server:
        unary = to_server.unary_unary("/t.Echo/Unary", request_serializer=bytes, response_deserializer=bytes)
        assert await unary(b"1") == b"1"
        (connection,) = server.connections
        connection.send_go_away()
        assert await asyncio.gather(*(unary(b"2") for _ in range(20))) == [b"2"] * 20


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "answered"])
async def test_a_call_that_has_ended_is_freed_without_the_garbage_collector(is_reset):
    def kept():
        return sum(type(each) in (Stream, CallContext) for each in gc.get_objects())

    async with echo_server() as (server, echo, port), raw_client(port) as client:
        gc.collect()
        before = kept()
        gc.disable()
        try:
            for _ in range(20):
                stream = await client.open_stream(HEADERS if is_reset else headers_to("Unary"))
                if is_reset:
                    await client.send(reset_frame(stream))
                else:
                    await client.send_data(stream, prefixed(b"x"), ends=True)
                    await ended(client, stream)
            await client.send(PingFrame(0, b"12345678").serialize())
            await echo.until(lambda: client.counts[frames.PING] and not server._running)
            assert kept() == before
        finally:
            gc.enable()


async def test_streams_that_are_reset_at_once_start_a_bounded_number_of_calls():
    async with echo_server(replace(LIMITS, max_streams=10)) as (server, echo, port), raw_client(port) as client:
        numbers, started, start = range(1, 401, 2), [], server.on_request
        server.on_request = lambda connection, stream: (started.append(stream), start(connection, stream))
        await client.send(b"".join(headers_frame(each, header_block(HEADERS)) + reset_frame(each) for each in numbers))
        await echo.until(lambda: len(started) + client.counts[frames.RST_STREAM] >= len(numbers))
        assert len(started) <= 2 * 10
        await echo.until(lambda: not server._running)
        (connection,) = server.connections
        assert connection.running_calls == 0
