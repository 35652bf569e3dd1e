"""gRPC over HTTP/2 on the event loop: its ends with each other and with the C core, and peers that break the rules."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from hyperframe.frame import DataFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from http2_echo import (
    HEADERS,
    LIMITS,
    MESSAGE_BYTES,
    core_channel,
    core_echo_server,
    echo_server,
    headers_to,
    our_channel,
    raw_client,
    stream_of,
)
from openai_calls import wait_until
from penstock.chassis.http2 import connection, frames, headers
from penstock.chassis.http2.messages import prefixed
from penstock.chassis.http2.metadata import decoded_timeout, encoded_timeout
from penstock.chassis.http2.server_connection import MAX_IDLE_SWEEPS
from penstock.proofs.hostile.wire.http2 import data_frame, header_block, headers_frame, reset_frame

PAIRS = [(echo_server, our_channel), (echo_server, core_channel), (core_echo_server, our_channel)]
pair = pytest.mark.parametrize(("server", "channel"), PAIRS, ids=["ours-ours", "ours-core", "core-ours"])
TIMEOUT_S = 10.0


def unary(channel, name):
    return channel.unary_unary(f"/t.Echo/{name}", request_serializer=bytes, response_deserializer=bytes)


async def failure_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return failure.value


@pair
async def test_messages_of_a_stream_come_back_in_order(server, channel):
    async with server() as (_, echo, port), channel(port) as to_server:
        call = stream_of(to_server)(metadata=(("plain", "text"), ("blob-bin", b"\x00\x01\xfe")))
        for size in (0, 1, 200, 70_000, 0, 3_000_000):
            await call.write(bytes(size))
            assert await call.read() == bytes(size)
        assert {("plain", "text"), ("blob-bin", b"\x00\x01\xfe")} <= set(echo.metadata)
        assert dict(await call.initial_metadata())["greeting"] == "hello"
        call.cancel()
        await echo.until(lambda: not echo.running)


@pair
async def test_statuses_and_metadata_arrive_with_their_bytes(server, channel):
    async with server() as (_, _echo, port), channel(port) as to_server:
        assert await unary(to_server, "Unary")(b"one") == b"one"
        failure = await failure_of(unary(to_server, "Refuse")(b""))
        assert (failure.code(), failure.details()) == (grpc.StatusCode.NOT_FOUND, "no öl, 100 %")
        assert dict(failure.trailing_metadata())["why-bin"] == b"\x01"
        assert (await failure_of(unary(to_server, "Missing")(b""))).code() is grpc.StatusCode.UNIMPLEMENTED


@pair
async def test_a_deadline_ends_a_call(server, channel):
    async with server() as (_, _echo, port), channel(port) as to_server:
        assert (await failure_of(unary(to_server, "Sleep")(b"", timeout=0.1))).code() is (
            grpc.StatusCode.DEADLINE_EXCEEDED
        )


@pair
async def test_a_cancel_reaches_the_handler(server, channel):
    async with server() as (_, echo, port), channel(port) as to_server:
        call = stream_of(to_server)()
        await call.write(b"x")
        assert await call.read() == b"x"
        assert call.cancel()
        await echo.until(lambda: not echo.running)
        if server is echo_server:  # the handler of the C core may read the end of the connection first
            assert echo.cancelled == 1
        assert not call.cancel()


async def test_a_stream_of_responses_is_read_by_a_client_of_the_c_core():
    async with echo_server() as (_, _echo, port), core_channel(port) as to_server:
        call = to_server.unary_stream("/t.Echo/Count", request_serializer=None, response_deserializer=None)(b"50")
        assert [int(each) async for each in call] == list(range(50))


@pytest.mark.parametrize(("server", "channel"), PAIRS[:2], ids=["ours-ours", "ours-core"])
async def test_a_server_that_does_not_read_stops_the_writer_and_loses_nothing(server, channel):
    async with server() as (_, echo, port), channel(port) as to_server:
        echo.may_read.clear()
        call, message, sent = stream_of(to_server)(), bytes(100_000), 0

        async def write_all():
            nonlocal sent
            for _ in range(60):
                await call.write(message)
                sent += 1

        writing = asyncio.create_task(write_all())
        await asyncio.sleep(0.3)
        assert sent < 60
        echo.may_read.set()
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(60):
                assert await call.read() == message
            await writing
        call.cancel()


async def test_a_server_that_drains_lets_the_streams_of_our_client_go_on():
    for server_of in (echo_server, core_echo_server):
        async with server_of() as (server, echo, port), our_channel(port) as to_server:
            call = stream_of(to_server)()
            await call.write(b"before")
            assert await call.read() == b"before"
            stopping = asyncio.create_task(server.stop(5.0))
            await asyncio.sleep(0.1)
            await call.write(b"after")
            assert await call.read() == b"after"
            call.cancel()
            await stopping
            await wait_until(lambda: echo.running == 0)  # the C core may return before a cancelled handler has ended


async def test_a_stopped_server_refuses_calls_and_cancels_those_that_outlast_its_grace():
    async with echo_server() as (server, echo, port), our_channel(port) as to_server:
        call = stream_of(to_server)()
        await call.write(b"x")
        await call.read()
        await server.stop(0.05)
        assert echo.cancelled == 1
        assert (await failure_of(call.read())).code() is grpc.StatusCode.UNAVAILABLE
        assert (await failure_of(unary(to_server, "Unary")(b""))).code() is grpc.StatusCode.UNAVAILABLE
        assert not server.connections


@pytest.mark.parametrize(
    "address", ["", "nonsense", "127.0.0.1:", "127.0.0.1:99999999", "a" * 300 + ":1", "127.0.0.1:1"]
)
async def test_an_address_at_which_no_server_is_reached_makes_a_call_unavailable(address):
    channel = our_channel(1)
    channel._address = address
    call = stream_of(channel)()
    for attempt in (call.write(b""), call.read()):
        assert (await failure_of(attempt)).code() is grpc.StatusCode.UNAVAILABLE
    assert not channel._calls


async def test_a_message_beyond_the_limit_is_refused_before_it_is_received():
    async with echo_server() as (_, echo, port), raw_client(port) as client:
        stream = await client.open_stream(HEADERS)
        await client.send_data(stream, b"\0" + (MESSAGE_BYTES + 1).to_bytes(4, "big"))
        await ended(client, stream)
        assert client.answers[stream].header(b"grpc-status") == str(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        assert str(MESSAGE_BYTES) in client.answers[stream].header(b"grpc-message")
        assert echo.running == 0


async def test_a_message_that_ends_early_is_refused():
    async with echo_server() as (_, _echo, port), raw_client(port) as client:
        stream = await client.open_stream(HEADERS)
        await client.send_data(stream, b"\0\0\0", ends=True)
        await ended(client, stream)
        assert client.answers[stream].header(b"grpc-status") == str(grpc.StatusCode.INVALID_ARGUMENT.value[0])


async def ended(client, stream):
    async with asyncio.timeout(TIMEOUT_S):
        while not client.answers[stream].has_ended:
            client.answers[stream].changed.clear()
            await client.answers[stream].changed.wait()


async def test_a_message_arrives_in_any_pieces_and_with_padding():
    async with echo_server() as (_, _echo, port), raw_client(port) as client:
        stream = await client.open_stream(HEADERS)
        for byte in prefixed(b"piecewise"):
            await client.send(DataFrame(stream, bytes([byte]), pad_length=7, flags=["PADDED"]).serialize())
        await client.send_data(stream, prefixed(b"two") + prefixed(b"three"), ends=True)
        await ended(client, stream)
        assert client.answers[stream].data == prefixed(b"piecewise") + prefixed(b"two") + prefixed(b"three")


async def test_a_client_that_reads_nothing_gets_no_more_than_its_window():
    async with (
        echo_server() as (server, echo, port),
        raw_client(port, initial_window=1_000, grants_window=False) as client,
    ):
        stream = await client.open_stream(HEADERS)
        await client.send_data(stream, prefixed(bytes(5_000)))
        await asyncio.sleep(0.2)
        assert len(client.answers[stream].data) == 1_000
        await client.send(WindowUpdateFrame(stream, window_increment=4_005).serialize())
        await echo.until(lambda: len(client.answers[stream].data) == 5_005)
        assert len(server.connections) == 1


def opened(stream):
    return headers_frame(stream, header_block(HEADERS))


STREAM = 1
OPEN = opened(STREAM)
BROKEN = {
    "no preface": None,
    "a frame that is too large": b"\xff\xff\xff" + bytes([frames.DATA, 0]) + STREAM.to_bytes(4, "big"),
    "data without a stream": frames.frame(frames.DATA, 0, 0, b"x"),
    "data of a stream that was never opened": data_frame(9, b"x"),
    "headers of an even stream": headers_frame(2, header_block(HEADERS)),
    "headers without a stream": frames.frame(frames.HEADERS, frames.END_HEADERS, 0, b""),
    "a reset of a stream that was never opened": reset_frame(9),
    "a reset of four bytes less": frames.frame(frames.RST_STREAM, 0, STREAM, b""),
    "an update by nothing": frames.frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)),
    "a window that overflows": frames.window_update(0, frames.LARGEST_WINDOW_BYTES),
    "settings of a stream": frames.frame(frames.SETTINGS, 0, STREAM),
    "settings cut short": frames.frame(frames.SETTINGS, 0, 0, b"12345"),
    "an acknowledgement with settings": frames.frame(frames.SETTINGS, frames.ACK, 0, bytes(6)),
    "a setting out of range": SettingsFrame(0, {SettingsFrame.INITIAL_WINDOW_SIZE: 2**31}).serialize(),
    "frames too small": SettingsFrame(0, {SettingsFrame.MAX_FRAME_SIZE: 1}).serialize(),
    "a ping of one byte": frames.frame(frames.PING, 0, 0, b"1"),
    "a push": frames.frame(frames.PUSH_PROMISE, 0, STREAM, bytes(4)),
    "headers that cannot be decoded": headers_frame(STREAM, b"\xff\xff\xff\xff\xff\xff"),
    "a continuation of nothing": frames.frame(frames.CONTINUATION, frames.END_HEADERS, STREAM),
    "a frame within headers": headers_frame(STREAM, b"", ends_headers=False)
    + frames.frame(frames.PING, 0, 0, bytes(8)),
    "padding beyond the frame": OPEN + frames.frame(frames.DATA, frames.PADDED, STREAM, b"\xff1"),
    "headers that are too large": headers_frame(STREAM, header_block([("a", "b" * headers.HEADER_BYTES)])),
    "headers that decode to too much": headers_frame(STREAM, header_block([("x", "y" * 2_000)]) + b"\xbe" * 200),
    "headers without an end": headers_frame(STREAM, b"", ends_headers=False)
    + frames.frame(frames.CONTINUATION, 0, STREAM, bytes(1_000)) * 20,
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_client_that_breaks_the_rules_loses_its_connection_and_no_other(name):
    async with echo_server() as (server, echo, port), our_channel(port) as honest:
        call = stream_of(honest)()
        await call.write(b"1")
        await call.read()
        if BROKEN[name] is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            async with asyncio.timeout(TIMEOUT_S):
                await reader.read()
            writer.close()
        else:
            async with raw_client(port) as client, asyncio.timeout(TIMEOUT_S):
                await client.send(BROKEN[name])
                await client.closed.wait()
                assert client.goaway_code not in (None, 0)
        await call.write(b"2")
        assert await call.read() == b"2"
        await echo.until(lambda: len(server.connections) == 1 and echo.running == 1)


FLOODS = {
    "pings": PingFrame(0, b"12345678").serialize(),
    "settings": SettingsFrame(0, {}).serialize(),
    "priorities": frames.frame(frames.PRIORITY, 0, STREAM, bytes(5)),
    "unknown frames": frames.frame(0x99, 0, 0, b"?"),
    "empty data": OPEN + data_frame(STREAM, b"") * 2,
    "acknowledgements": PingFrame(0, bytes(8), flags=["ACK"]).serialize(),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_frames_without_messages_ends_its_connection(name):
    async with echo_server() as (_, _echo, port), raw_client(port) as client:
        begin, each = (OPEN, data_frame(STREAM, b"")) if name == "empty data" else (b"", FLOODS[name])
        await client.send(begin + each * (2 * headers.MAX_CONTROL_FRAMES + 10))
        async with asyncio.timeout(TIMEOUT_S):
            await client.closed.wait()
        assert client.goaway_code == frames.ErrorCode.ENHANCE_YOUR_CALM


async def test_requests_with_their_resets_end_their_connection_and_leave_no_call():
    async with echo_server() as (_, echo, port), raw_client(port) as client:
        pairs = (opened(2 * each + 1) + RstStreamFrame(2 * each + 1, error_code=8).serialize() for each in range(2_100))
        await client.send(b"".join(pairs))
        async with asyncio.timeout(TIMEOUT_S):
            await client.closed.wait()
        await echo.until(lambda: not echo.running)


async def test_messages_that_never_end_are_held_up_to_a_bound_of_their_connection():
    """Each stream sends all but the last byte of a message of the largest size."""
    async with echo_server() as (_, echo, port), raw_client(port) as client:
        part = b"\0" + MESSAGE_BYTES.to_bytes(4, "big") + bytes(MESSAGE_BYTES - 1)
        async with asyncio.timeout(TIMEOUT_S):
            while not client.closed.is_set():
                await client.send_data(await client.open_stream(HEADERS), part)
        assert client.goaway_code == frames.ErrorCode.ENHANCE_YOUR_CALM
        window = connection.CONNECTION_WINDOW_BYTES // MESSAGE_BYTES  # messages
        assert LIMITS.max_held_messages < len(client.answers) <= LIMITS.max_held_messages + window + 1
        await echo.until(lambda: not echo.running)


async def test_streams_beyond_the_limit_are_refused_one_by_one():
    async with echo_server(replace(LIMITS, max_streams=3)) as (_, echo, port), raw_client(port) as client:
        streams = [await client.open_stream(HEADERS) for _ in range(5)]
        for stream in streams[3:]:
            await ended(client, stream)
            assert client.answers[stream].reset_code == frames.ErrorCode.REFUSED_STREAM
        await echo.until(lambda: echo.running == 3)


async def test_messages_that_arrived_before_a_reset_are_read():
    async with echo_server() as (_, echo, port), raw_client(port) as client:
        echo.may_read.clear()
        await client.send(headers_frame(STREAM, header_block(headers_to("Collect"))))
        await echo.until(lambda: echo.running == 1)
        messages = b"".join(data_frame(STREAM, prefixed(b"x")) for _ in range(5))
        echo.may_read.set()
        await client.send(messages + reset_frame(STREAM))
        await echo.until(lambda: echo.cancelled == 1)
        assert echo.read == 5


async def test_a_frozen_client_and_one_without_calls_are_closed(monkeypatch):
    async with echo_server() as (server, echo, port), our_channel(port) as honest:
        call = stream_of(honest)()
        await call.write(b"1")
        await call.read()
        _, frozen = await asyncio.open_connection("127.0.0.1", port)
        frozen.write(frames.PREFACE + frames.settings({}) + OPEN)
        await echo.until(lambda: echo.running == 2)
        for _ in range(3):
            server._sweep_silent()
            await asyncio.sleep(0.05)  # in which an honest client answers the ping
        await echo.until(lambda: echo.running == 1)
        await call.write(b"2")
        assert await call.read() == b"2"
        frozen.close()
        async with raw_client(port) as idle:
            await echo.until(lambda: len(server.connections) == 2)
            for _ in range(MAX_IDLE_SWEEPS + 1):
                assert not idle.closed.is_set()
                server._sweep_silent()
                await asyncio.sleep(0.05)
            await echo.until(idle.closed.is_set)
        assert len(server.connections) == 1


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 0.0005, 0.25, 7.5, 90.0, 86_400.0, 1e9])
def test_a_timeout_is_sent_in_at_most_eight_digits(seconds):
    sent = encoded_timeout(seconds)
    assert len(sent) <= 9
    assert decoded_timeout(sent) == pytest.approx(seconds, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("value", [b"", b"5", b"S", b"123456789S", b"-1S", b"1x", b"1.5S"])
def test_a_malformed_timeout_is_none(value):
    assert decoded_timeout(value) is None
