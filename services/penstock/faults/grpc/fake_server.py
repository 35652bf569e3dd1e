"""What a tier's server registers with: calls come from the network and run its handlers, as grpc.aio would."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import grpc
from grpc import StatusCode

from penstock.faults.grpc.fake_channel import Exchange, Metadata
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Connection, Network
from penstock.faults.world.event_loop import ProcessLoop

PEER = "ipv4:127.0.0.1:1"


class Details(NamedTuple):
    """As grpc.HandlerCallDetails."""

    method: str
    invocation_metadata: Metadata


class Context:
    """A handler's side of one call."""

    def __init__(self, network: Network, exchange: Exchange, handler: Any) -> None:
        self._network = network
        self._exchange = exchange
        self._serialize = handler.response_serializer
        self._deserialize = handler.request_deserializer
        self._code = StatusCode.OK
        self._details = ""
        self._trailing: Metadata = ()

    async def read(self) -> Any:
        message = await self._exchange.to_server.next()
        return grpc.aio.EOF if message is None else self._deserialize(message)

    async def write(self, frame: Any) -> None:
        exchange = self._exchange
        packed = self._serialize(frame)
        self._network.send(exchange, TO_CLIENT, frame, exchange.to_client.put, packed)
        await asyncio.sleep(0)
        await exchange.window.sent(len(packed))

    async def send_initial_metadata(self, _: object) -> None:
        await asyncio.sleep(0)

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        self._code, self._details, self._trailing = code, details, tuple(trailing_metadata)
        raise grpc.aio.AbortError

    def invocation_metadata(self) -> Metadata:
        return self._exchange.metadata

    def peer(self) -> str:
        return PEER

    def time_remaining(self) -> float | None:
        at = self._exchange.give_up_at
        return None if at is None else max(0.0, at - self._network.world.now)

    def code(self) -> StatusCode:
        return self._code

    def end(self, code: StatusCode | None = None, details: str = "") -> None:
        """Tell the client how the call ended."""
        exchange, status = self._exchange, (code or self._code, details or self._details, self._trailing)
        self._network.deliver(exchange, TO_CLIENT, exchange.ended, *status)


class Server:
    """Stands for grpc.aio.Server. `stop` may be called again with less patience."""

    def __init__(self, network: Network, loop: ProcessLoop, interceptors: Sequence[Any]) -> None:
        self.loop = loop
        self.running: dict[Exchange, asyncio.Task[None]] = {}
        self._network = network
        self._interceptors = interceptors
        self._handlers: dict[str, Any] = {}
        self._address = ""
        self._sides: list[ServerSide] = []
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
        for side in self._sides:
            side.go_away()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace or 0.0):
                await self._is_idle.wait()
        for task in list(self.running.values()):
            task.cancel()
        await self._is_idle.wait()
        for side in self._sides:
            self._network.close(side.connection, TO_SERVER)
        self._sides.clear()

    @property
    def methods(self) -> list[str]:
        return [exchange.method for exchange in self.running]

    def figures(self) -> dict[str, float]:
        """What the process says of itself in its snapshots."""
        admin = self._handlers["penstock.v1.Admin/GetSnapshot"].unary_unary.__self__
        return dict(admin._figures())  # noqa: SLF001  # without what the host knows of this process

    def accept(self, connection: Connection) -> "ServerSide":
        side = ServerSide(self, connection)
        self._sides.append(side)
        return side

    def forget(self, side: "ServerSide") -> None:
        if side in self._sides:
            self._sides.remove(side)

    def take(self, exchange: Exchange) -> None:
        self._is_idle.clear()
        task = self.running[exchange] = self.loop.create_task(self._serve(exchange), name=exchange.method)
        # Not in the task itself, which may be cancelled before it begins.
        task.add_done_callback(lambda _: self._served(exchange))

    def cancel(self, exchange: Exchange) -> None:
        if task := self.running.get(exchange):
            task.cancel()

    async def _serve(self, exchange: Exchange) -> None:
        context = None
        try:
            handler = None if self.is_stopping else await self._handler(exchange)
            if handler is None:
                gone = StatusCode.UNAVAILABLE if self.is_stopping else StatusCode.UNIMPLEMENTED
                self._network.deliver(exchange, TO_CLIENT, exchange.ended, gone, "not served here", ())
                return
            context = Context(self._network, exchange, handler)
            await _run(handler, context)
            context.end()
        except grpc.aio.AbortError:
            assert context
            context.end()
        except asyncio.CancelledError:
            if context:
                context.end(StatusCode.UNAVAILABLE, "the server cancelled the call")

    def _served(self, exchange: Exchange) -> None:
        exchange.to_server.close()
        del self.running[exchange]
        if not self.running:
            self._is_idle.set()

    async def _handler(self, exchange: Exchange) -> Any:
        """The registered handler inside all interceptors, the first outermost."""
        details = Details(f"/{exchange.method}", exchange.metadata)

        async def next_of(interceptors: Sequence[Any]) -> Any:
            if not interceptors:
                return self._handlers.get(exchange.method)
            return await interceptors[0].intercept_service(lambda _: next_of(interceptors[1:]), details)

        return await next_of(self._interceptors)


class ServerSide:
    """A server's side of one connection."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self.connection = connection
        self._server = server

    def take(self, exchange: Exchange) -> None:
        self._server.take(exchange)

    def cancel(self, exchange: Exchange) -> None:
        self._server.cancel(exchange)

    def go_away(self) -> None:
        self._server.loop.call_soon(self._tell)

    def lost(self, why: str) -> None:
        self._server.forget(self)
        for exchange, task in list(self._server.running.items()):
            if exchange.connection is self.connection:
                task.cancel()

    def _tell(self) -> None:
        network = self._server._network  # noqa: SLF001  # two halves of one thing
        network.deliver(self.connection.control, TO_CLIENT, self._arrive)

    def _arrive(self) -> None:
        """On the client's loop, after it has heard that the connection is there."""
        client: Any = self.connection.sides[TO_CLIENT]
        client.go_away()


async def _run(handler: Any, context: Context) -> None:
    if handler.request_streaming:
        await handler.stream_stream(None, context)
        return
    request = await context.read()
    if handler.response_streaming:
        await handler.unary_stream(request, context)
        return
    await context.write(await handler.unary_unary(request, context))
