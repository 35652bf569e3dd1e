"""What a stub calls: a channel, and the calls on it, as grpc.aio has them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any, Self

import grpc
from grpc import ChannelConnectivity as Connectivity
from grpc import StatusCode

from penstock.faults.grpc.flow_control import Window
from penstock.faults.grpc.inbox import Inbox
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, WINDOW, Connection, Line, Network, call_on
from penstock.faults.world.event_loop import ProcessLoop

BACKOFF = (0.05, 1.0)  # s; as the chassis sets it for real channels
Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(eq=False, kw_only=True)
class Exchange(Line):
    """What both sides of a call share."""

    to_server: Inbox
    to_client: Inbox
    window: Window  # of the answer
    metadata: Metadata
    give_up_at: float | None  # s, on the world's clock
    ended: Callable[[StatusCode, str, Metadata], None]  # to be called on the client's loop


class Channel:
    """One process's connection to one address, made when it is needed and again when it is lost."""

    def __init__(self, network: Network, loop: ProcessLoop, address: str) -> None:
        self.network = network
        self.loop = loop
        self._address = address
        self._state = Connectivity.IDLE
        self._connection: Connection | None = None
        self._changed = asyncio.Event()
        self._failures = 0
        self._waiting: list[Call] = []  # for the connection
        self._calls: dict[Call, None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        for call in [*self._waiting, *self._calls]:
            call.cancel()
        self._go(Connectivity.SHUTDOWN)
        if self._connection:
            self.network.close(self._connection, TO_CLIENT)
            self._connection = None

    def get_state(self, *, try_to_connect: bool = False) -> Connectivity:
        if try_to_connect and self._state is Connectivity.IDLE:
            self._connect()
        return self._state

    async def wait_for_state_change(self, last: Connectivity) -> None:
        while self._state is last:
            await self._changed.wait()

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda request, **given: UnaryCall(
            self, method, request_serializer, response_deserializer, request=request, **given
        )

    def unary_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda request, **given: Call(
            self, method, request_serializer, response_deserializer, request=request, **given
        )

    def stream_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda **given: Call(self, method, request_serializer, response_deserializer, **given)

    # What calls do.

    def begin(self, call: "Call") -> None:
        if self._connection:
            self._start(call, self._connection)
        elif self._state in (Connectivity.TRANSIENT_FAILURE, Connectivity.SHUTDOWN):
            call_on(self.loop, call.end, StatusCode.UNAVAILABLE, f"no connection to {self._address}", ())
        else:
            self._waiting.append(call)
            if self._state is Connectivity.IDLE:
                self._connect()

    def leave(self, call: "Call") -> None:
        self._calls.pop(call, None)
        if call in self._waiting:
            self._waiting.remove(call)

    # What the network says.

    def lost(self, connection: Connection, why: str) -> None:
        self.go_away(connection)
        for call in [each for each in self._calls if each.is_on(connection)]:
            call.end(StatusCode.UNAVAILABLE, why, ())

    def go_away(self, connection: Connection) -> None:
        """No new calls on it; those under way go on."""
        if self._connection is connection:
            self._connection = None
            self._go(Connectivity.IDLE)

    def _connect(self) -> None:
        self._go(Connectivity.CONNECTING)
        self.network.connect(self.loop, self._address, self._up, self._down)

    def _up(self, connection: Connection) -> "Side":
        side = Side(self, connection)
        if self._state is Connectivity.SHUTDOWN:
            self.network.close(connection, TO_CLIENT)
            return side
        self._connection, self._failures = connection, 0
        self._go(Connectivity.READY)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._start(call, connection)
        return side

    def _down(self) -> None:
        if self._state is Connectivity.SHUTDOWN:
            return
        self._go(Connectivity.TRANSIENT_FAILURE)
        wait = min(BACKOFF[0] * 2**self._failures, BACKOFF[1])
        self._failures += 1
        self.loop.call_later(wait, self._cooled)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.end(StatusCode.UNAVAILABLE, f"no connection to {self._address}", ())

    def _cooled(self) -> None:
        if self._state is Connectivity.TRANSIENT_FAILURE:
            self._go(Connectivity.IDLE)

    def _start(self, call: "Call", connection: Connection) -> None:
        self._calls[call] = None
        call.connected(connection)

    def _go(self, state: Connectivity) -> None:
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()


class Side:
    """A channel's side of one connection: of two in a row, the loss of the first says nothing of the second."""

    def __init__(self, channel: Channel, connection: Connection) -> None:
        self._channel = channel
        self._connection = connection

    def lost(self, why: str) -> None:
        self._channel.lost(self._connection, why)

    def go_away(self) -> None:
        self._channel.go_away(self._connection)


class Call:
    """A call with a stream of answers; with a stream of requests too, where it was given no request."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
        *,
        request: Any = None,
        metadata: Metadata | None = None,
        timeout: float | None = None,
    ) -> None:
        self._channel = channel
        self._method = method.removeprefix("/")
        self._serialize = serialize
        self._deserialize = deserialize
        self._request = request
        self._metadata: Metadata = tuple(metadata or ())
        self._inbox = Inbox(channel.loop)
        self._exchange: Exchange | None = None
        self._begun = asyncio.Event()
        self._status: tuple[StatusCode, str, Metadata] | None = None
        self._give_up_at = None if timeout is None else channel.loop.time() + timeout
        self._timer = None if timeout is None else channel.loop.call_later(timeout, self._late)
        channel.begin(self)

    def is_on(self, connection: Connection) -> bool:
        return self._exchange is not None and self._exchange.connection is connection

    def done(self) -> bool:
        return self._status is not None

    async def write(self, frame: Any) -> None:
        await self._begun.wait()
        if self._exchange is None or self.done():
            raise asyncio.InvalidStateError("the call is over")
        self._send(self._exchange, frame)
        await asyncio.sleep(0)

    async def read(self) -> Any:
        message = await self._next()
        if message is None:
            self._raise_for_status()
            return grpc.aio.EOF
        return self._deserialize(message)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self._next()) is not None:
            yield self._deserialize(message)
        self._raise_for_status()

    def cancel(self) -> bool:
        if self.done():
            return False
        self.end(StatusCode.CANCELLED, "cancelled by us", ())
        return True

    # What the channel says.

    def connected(self, connection: Connection) -> None:
        network = self._channel.network
        exchange = self._exchange = Exchange(
            method=self._method,
            connection=connection,
            to_server=Inbox(connection.loops[TO_SERVER]),
            to_client=self._inbox,
            window=Window(network.windows.get(self._channel.loop.name, WINDOW), connection.loops[TO_SERVER]),
            metadata=self._metadata,
            give_up_at=self._give_up_at,
            ended=self.end,
        )
        self._inbox.took = self._took
        server: Any = connection.sides[TO_SERVER]
        network.deliver(exchange, TO_SERVER, server.take, exchange)
        if self._request is not None:
            self._send(exchange, self._request)
        self._begun.set()

    def end(self, code: StatusCode, details: str, trailing: Metadata) -> None:
        """End it once, by the server's status or by what happened here."""
        if self._status:
            return
        self._status = code, details, trailing
        if self._timer:
            self._timer.cancel()
        self._inbox.close()
        self._begun.set()
        self._channel.leave(self)
        if self._exchange and code in (StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED):
            server: Any = self._exchange.connection.sides[TO_SERVER]
            self._channel.network.deliver(self._exchange, TO_SERVER, server.cancel, self._exchange)

    def _took(self, count: int) -> None:
        assert self._exchange
        if told := self._exchange.window.read(count):
            self._channel.network.deliver(self._exchange, TO_SERVER, self._exchange.window.grow, told)

    def _late(self) -> None:
        self.end(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())

    def _send(self, exchange: Exchange, frame: Any) -> None:
        packed = self._serialize(frame)
        self._channel.network.send(exchange, TO_SERVER, frame, exchange.to_server.put, packed)

    async def _next(self) -> bytes | None:
        try:
            return await self._inbox.next()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _raise_for_status(self) -> None:
        assert self._status
        code, details, trailing = self._status
        if code is StatusCode.CANCELLED and details == "cancelled by us":
            raise asyncio.CancelledError
        if code is not StatusCode.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details)


class UnaryCall(Call):
    """A call with one answer, to be awaited."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self.read().__await__()
