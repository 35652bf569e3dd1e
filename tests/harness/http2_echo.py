"""A server of gRPC over HTTP/2 with a few methods, and raw clients of it."""

import asyncio
from contextlib import asynccontextmanager

import grpc

from penstock.chassis.http2.channel import Http2Channel
from penstock.chassis.http2.limits import Http2Limits
from penstock.chassis.http2.server import Http2Server
from penstock.proofs.hostile.wire.http2 import open_http2

MESSAGE_BYTES = 4 << 20
LIMITS = Http2Limits(message_bytes=MESSAGE_BYTES)


def headers_to(method):
    pseudo = [(":method", "POST"), (":scheme", "http"), (":path", f"/t.Echo/{method}"), (":authority", "test")]
    return [*pseudo, ("te", "trailers"), ("content-type", "application/grpc")]


HEADERS = headers_to("Stream")


class Echo:
    """The handlers, with counts of the calls that run and that were cancelled."""

    def __init__(self):
        self.running = self.cancelled = self.read = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.metadata = ()
        self.changed = asyncio.Event()

    async def stream(self, _messages, context):
        self.running += 1
        self.metadata = context.invocation_metadata()
        try:
            await context.send_initial_metadata((("greeting", "hello"),))
            while True:
                await self.may_read.wait()
                message = await context.read()
                if message is grpc.aio.EOF:
                    return
                await context.write(message)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            self.changed.set()

    async def collect(self, messages, _context):
        self.running += 1
        await self.may_read.wait()
        try:
            async for _ in messages:
                self.read += 1
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def unary(self, message, context):
        context.set_trailing_metadata((("cost-bin", b"\x00\xff"), ("unit", "token")))
        return message

    async def refuse(self, _message, context):
        await context.abort(grpc.StatusCode.NOT_FOUND, "no öl, 100 %", (("why-bin", b"\x01"),))

    async def sleep(self, _message, _context):
        await asyncio.sleep(60)

    async def count(self, message, _context):
        for number in range(int(message)):
            yield str(number).encode()

    def methods(self):
        return {
            "Stream": grpc.stream_stream_rpc_method_handler(self.stream),
            "Collect": grpc.stream_stream_rpc_method_handler(self.collect),
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Refuse": grpc.unary_unary_rpc_method_handler(self.refuse),
            "Sleep": grpc.unary_unary_rpc_method_handler(self.sleep),
            "Count": grpc.unary_stream_rpc_method_handler(self.count),
        }

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110  # the event has no hook
                await asyncio.sleep(0.005)


@asynccontextmanager
async def echo_server(limits=LIMITS):
    server, echo = Http2Server((), limits), Echo()
    server.add_registered_method_handlers("t.Echo", echo.methods())
    port = server.add_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, echo, port
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def core_echo_server():
    """The same methods, served by gRPC's C core."""
    server, echo = grpc.aio.server(), Echo()
    server.add_registered_method_handlers("t.Echo", echo.methods())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", echo.methods()),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, echo, port
    finally:
        await server.stop(0.0)


def our_channel(port):
    return Http2Channel(f"127.0.0.1:{port}", None, message_bytes=MESSAGE_BYTES)


def core_channel(port):
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", MESSAGE_BYTES)])


def stream_of(channel):
    return channel.stream_stream("/t.Echo/Stream", request_serializer=bytes, response_deserializer=bytes)


@asynccontextmanager
async def raw_client(port, **options):
    async with open_http2(("127.0.0.1", port), **options) as client:
        yield client
