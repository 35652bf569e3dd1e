"""Fake gRPC server: calls arrive from the simulated network and run the registered handlers, as in grpc.aio."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import grpc
from grpc import StatusCode

from penstock.chassis.security.identity import TIERS, new_identity
from penstock.faults.grpc.fake_channel import CallStream, Metadata
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Connection, Network
from penstock.faults.world.event_loop import ProcessLoop

PEER = "ipv4:127.0.0.1:1"
TRUST_DOMAIN = "faults"


class HandlerCallDetails(NamedTuple):
    """The fields of `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Metadata


class FakeServicerContext:
    """The context of one call, which replaces `grpc.aio.ServicerContext`."""

    def __init__(self, network: Network, stream: CallStream, handler: Any) -> None:
        self._network = network
        self._stream = stream
        self._serialize = handler.response_serializer
        self._deserialize = handler.request_deserializer
        self._code = StatusCode.OK
        self._details = ""
        self._trailing: Metadata = ()

    async def read(self) -> Any:
        message = await self._stream.to_server.receive()
        return grpc.aio.EOF if message is None else self._deserialize(message)

    async def write(self, frame: Any) -> None:
        stream, packed = self._stream, self._serialize(frame)
        self._network.send(stream, TO_CLIENT, frame, stream.to_client.put, packed)
        await asyncio.sleep(0)
        await stream.window.reserve(len(packed))

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        self._trailing = tuple(trailing_metadata)

    async def send_initial_metadata(self, _: object) -> None:
        await asyncio.sleep(0)

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._code, self._details, self._trailing = code, details, tuple(trailing_metadata)
        raise grpc.aio.AbortError

    def invocation_metadata(self) -> Metadata:
        return self._stream.metadata

    def peer(self) -> str:
        return PEER

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the identity of a process of the mesh, as its certificate would state it; clients have none."""
        name = self._stream.connection.loops[0].name
        tier = name.rstrip("0123456789-")
        if tier not in TIERS:
            return {}
        uri = new_identity(TRUST_DOMAIN, tier, name).uri
        return {"transport_security_type": [b"ssl"], "peer_spiffe_id": [uri.encode()]}

    def time_remaining(self) -> float | None:
        deadline = self._stream.deadline
        return None if deadline is None else max(0.0, deadline - self._network.world.now)

    def code(self) -> StatusCode:
        return self._code

    def end(self, code: StatusCode | None = None, details: str = "") -> None:
        """Send the call's status to the client."""
        stream, status = self._stream, (code or self._code, details or self._details, self._trailing)
        self._network.deliver(stream, TO_CLIENT, stream.on_ended, *status)


class FakeServer:
    """Replaces `grpc.aio.Server`. `stop` may be called again with a shorter grace period."""

    def __init__(self, network: Network, loop: ProcessLoop, interceptors: Sequence[Any]) -> None:
        self.loop = loop
        self.running: dict[CallStream, asyncio.Task[None]] = {}
        self._network = network
        self._interceptors = interceptors
        self._handlers: dict[str, Any] = {}
        self.admin: Any = None  # the Admin service of its process, which no listener serves
        self._address = ""
        self._connection_sides: list[ServerSide] = []
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_stopping = False

    def add_generic_rpc_handlers(self, handlers: Any) -> None: ...

    def add_registered_method_handlers(self, service_name: str, methods: dict[str, Any]) -> None:
        self._handlers.update({f"{service_name}/{name}": method for name, method in methods.items()})

    def add_insecure_port(self, address: str) -> int:
        self._address = address
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self._network.listeners[self._address] = self

    async def stop(self, grace: float | None) -> None:
        self.is_stopping = True
        listener: object = self._network.listeners.get(self._address)
        if listener is self:
            del self._network.listeners[self._address]
        for side in self._connection_sides:
            side.send_go_away()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace or 0.0):
                await self._is_idle.wait()
        for task in list(self.running.values()):
            task.cancel()
        await self._is_idle.wait()
        for side in self._connection_sides:
            self._network.close(side.connection, TO_SERVER)
        self._connection_sides.clear()

    @property
    def active_methods(self) -> list[str]:
        return [stream.method for stream in self.running]

    def figures(self) -> dict[str, float]:
        """Return the figures of the process, as in its admin snapshot."""
        return dict(self.admin._figures())  # noqa: SLF001  # the public method adds figures of the host

    def accept(self, connection: Connection) -> "ServerSide":
        side = ServerSide(self, connection)
        self._connection_sides.append(side)
        return side

    def remove_side(self, side: "ServerSide") -> None:
        if side in self._connection_sides:
            self._connection_sides.remove(side)

    def on_call(self, stream: CallStream) -> None:
        self._is_idle.clear()
        task = self.running[stream] = self.loop.create_task(self._serve_call(stream), name=stream.method)
        # Not at the end of the coroutine: the task may be cancelled before its first step.
        task.add_done_callback(lambda _: self._on_call_ended(stream))

    def cancel_call(self, stream: CallStream) -> None:
        if task := self.running.get(stream):
            task.cancel()

    async def _serve_call(self, stream: CallStream) -> None:
        context = None
        try:
            handler = None if self.is_stopping else await self._find_handler(stream)
            if handler is None:
                code = StatusCode.UNAVAILABLE if self.is_stopping else StatusCode.UNIMPLEMENTED
                self._network.deliver(stream, TO_CLIENT, stream.on_ended, code, "the method is not served", ())
                return
            context = FakeServicerContext(self._network, stream, handler)
            await _run_handler(handler, context)
            context.end()
        except grpc.aio.AbortError:
            assert context
            context.end()
        except asyncio.CancelledError:
            if context:
                context.end(StatusCode.UNAVAILABLE, "the server cancelled the call")

    def _on_call_ended(self, stream: CallStream) -> None:
        stream.to_server.close()
        del self.running[stream]
        if not self.running:
            self._is_idle.set()

    async def _find_handler(self, stream: CallStream) -> Any:
        """Return the registered handler wrapped in all interceptors; the first interceptor is the outermost."""
        details = HandlerCallDetails(f"/{stream.method}", stream.metadata)

        async def next_of(interceptors: Sequence[Any]) -> Any:
            if not interceptors:
                return self._handlers.get(stream.method)
            return await interceptors[0].intercept_service(lambda _: next_of(interceptors[1:]), details)

        return await next_of(self._interceptors)


class ServerSide:
    """The server's side of one connection."""

    def __init__(self, server: FakeServer, connection: Connection) -> None:
        self.connection = connection
        self._server = server

    def on_call(self, stream: CallStream) -> None:
        self._server.on_call(stream)

    def cancel_call(self, stream: CallStream) -> None:
        self._server.cancel_call(stream)

    def send_go_away(self) -> None:
        self._server.loop.call_soon(self._send_go_away)

    def on_lost(self, reason: str) -> None:
        self._server.remove_side(self)
        for stream, task in list(self._server.running.items()):
            if stream.connection is self.connection:
                task.cancel()

    def _send_go_away(self) -> None:
        network = self._server._network  # noqa: SLF001  # `FakeServer` and its connections are one unit
        network.deliver(self.connection.control_stream, TO_CLIENT, self._deliver_go_away)

    def _deliver_go_away(self) -> None:
        """Deliver the GOAWAY on the client's loop, after the client has been connected."""
        client: Any = self.connection.sides[TO_CLIENT]
        client.on_go_away()


async def _requests(context: FakeServicerContext) -> AsyncIterator[Any]:
    """Yield the messages of a client, for a handler that iterates over them instead of reading its context."""
    while (message := await context.read()) is not grpc.aio.EOF:
        yield message


async def _run_handler(handler: Any, context: FakeServicerContext) -> None:
    if handler.request_streaming and handler.response_streaming:
        await handler.stream_stream(_requests(context), context)
        return
    if handler.request_streaming:
        await context.write(await handler.stream_unary(_requests(context), context))
        return
    request = await context.read()
    if handler.response_streaming:
        await handler.unary_stream(request, context)
        return
    await context.write(await handler.unary_unary(request, context))
