"""Fake gRPC channel and its calls, which replace those of grpc.aio."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any, Self

import grpc
from grpc import ChannelConnectivity as Connectivity
from grpc import StatusCode

from penstock.faults.grpc.flow_control import FlowControlWindow, MessageInbox
from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, WINDOW_BYTES, Connection, MessageStream, Network, run_on
from penstock.faults.world.event_loop import ProcessLoop

RECONNECT_BACKOFF_S = (0.05, 1.0)  # first and longest wait in s, as `chassis.channels` sets them
CANCELLED_LOCALLY = "cancelled by the client"
Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(eq=False, kw_only=True)
class CallStream(MessageStream):
    """The state of a call that both sides share."""

    to_server: MessageInbox
    to_client: MessageInbox
    window: FlowControlWindow  # of the response stream
    metadata: Metadata
    deadline: float | None  # s, on the world's clock; None: no deadline
    on_ended: Callable[[StatusCode, str, Metadata], None]  # called on the client's loop

    @property
    def is_open(self) -> bool:
        return super().is_open and not self.to_client.is_closed


class FakeChannel:
    """The channel of one process to one address; it connects when a call needs it, and again after a loss."""

    def __init__(self, network: Network, loop: ProcessLoop, address: str) -> None:
        self.network = network
        self.loop = loop
        self._address = address
        self._state = Connectivity.IDLE
        self._connection: Connection | None = None
        self._changed = asyncio.Event()
        self._failures = 0
        self._pending_calls: list[FakeCall] = []  # they wait for the connection
        self._calls: dict[FakeCall, None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        for call in [*self._pending_calls, *self._calls]:
            call.cancel()
        self._set_state(Connectivity.SHUTDOWN)
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
        return lambda request, **given: FakeUnaryCall(
            self, method, request_serializer, response_deserializer, request=request, **given
        )

    def unary_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda request, **given: FakeCall(
            self, method, request_serializer, response_deserializer, request=request, **given
        )

    def stream_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return lambda **given: FakeCall(self, method, request_serializer, response_deserializer, **given)

    # Called by calls.

    def start_call(self, call: "FakeCall") -> None:
        is_failing = self._state is Connectivity.TRANSIENT_FAILURE and not call.waits_for_ready
        if self._connection:
            self._start_on(call, self._connection)
        elif is_failing or self._state is Connectivity.SHUTDOWN:
            run_on(self.loop, call.end, StatusCode.UNAVAILABLE, f"no connection to {self._address}", ())
        else:
            self._pending_calls.append(call)
            if self._state is Connectivity.IDLE:
                self._connect()

    def remove_call(self, call: "FakeCall") -> None:
        self._calls.pop(call, None)
        if call in self._pending_calls:
            self._pending_calls.remove(call)

    # Called by the network.

    def on_connection_lost(self, connection: Connection, reason: str) -> None:
        self.on_go_away(connection)
        for call in [each for each in self._calls if each.is_on(connection)]:
            call.end(StatusCode.UNAVAILABLE, reason, ())

    def on_go_away(self, connection: Connection) -> None:
        """Start no new call on the connection; active calls continue."""
        if self._connection is connection:
            self._connection = None
            self._set_state(Connectivity.IDLE)

    def _connect(self) -> None:
        self._set_state(Connectivity.CONNECTING)
        self.network.connect(self.loop, self._address, self._on_connected, self._on_connect_failed)

    def _on_connected(self, connection: Connection) -> "ClientSide":
        side = ClientSide(self, connection)
        if self._state is Connectivity.SHUTDOWN:
            self.network.close(connection, TO_CLIENT)
            return side
        self._connection, self._failures = connection, 0
        self._set_state(Connectivity.READY)
        pending, self._pending_calls = self._pending_calls, []
        for call in pending:
            self._start_on(call, connection)
        return side

    def _on_connect_failed(self) -> None:
        if self._state is Connectivity.SHUTDOWN:
            return
        self._set_state(Connectivity.TRANSIENT_FAILURE)
        wait = min(RECONNECT_BACKOFF_S[0] * 2**self._failures, RECONNECT_BACKOFF_S[1])
        self._failures += 1
        self.loop.call_later(wait, self._on_backoff_ended)
        for call in [each for each in self._pending_calls if not each.waits_for_ready]:
            call.end(StatusCode.UNAVAILABLE, f"no connection to {self._address}", ())

    def _on_backoff_ended(self) -> None:
        if self._state is Connectivity.TRANSIENT_FAILURE:
            self._set_state(Connectivity.IDLE)
            if self._pending_calls:
                self._connect()

    def _start_on(self, call: "FakeCall", connection: Connection) -> None:
        self._calls[call] = None
        call.on_connected(connection)

    def _set_state(self, state: Connectivity) -> None:
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()


class ClientSide:
    """The channel's side of one connection, so that a late loss of it does not affect the next connection."""

    def __init__(self, channel: FakeChannel, connection: Connection) -> None:
        self._channel = channel
        self._connection = connection

    def on_lost(self, reason: str) -> None:
        self._channel.on_connection_lost(self._connection, reason)

    def on_go_away(self) -> None:
        self._channel.on_go_away(self._connection)


class FakeCall:
    """A call with a response stream; it has a request stream as well if it was given no request."""

    def __init__(
        self,
        channel: FakeChannel,
        method: str,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
        *,
        request: Any = None,
        metadata: Metadata | None = None,
        timeout: float | None = None,
        wait_for_ready: bool = False,
    ) -> None:
        self.waits_for_ready = wait_for_ready
        self._channel = channel
        self._method = method.removeprefix("/")
        self._serialize = serialize
        self._deserialize = deserialize
        self._request = request
        self._metadata: Metadata = tuple(metadata or ())
        self._inbox = MessageInbox(channel.loop)
        self._stream: CallStream | None = None
        self._started = asyncio.Event()
        self._status: tuple[StatusCode, str, Metadata] | None = None
        self._deadline = None if timeout is None else channel.loop.time() + timeout
        self._timer = None if timeout is None else channel.loop.call_later(timeout, self._on_deadline)
        channel.start_call(self)

    def is_on(self, connection: Connection) -> bool:
        return self._stream is not None and self._stream.connection is connection

    def done(self) -> bool:
        return self._status is not None

    async def code(self) -> StatusCode:
        """Return the status of a call that is done; grpc.aio would wait for it."""
        assert self._status
        return self._status[0]

    async def details(self) -> str:
        assert self._status
        return self._status[1]

    async def initial_metadata(self) -> Metadata:
        return ()

    async def trailing_metadata(self) -> Metadata:
        assert self._status
        return self._status[2]

    async def write(self, frame: Any) -> None:
        await self._started.wait()
        if self._stream is None or self.done():
            raise asyncio.InvalidStateError("the call has ended")
        self._send(self._stream, frame)
        await asyncio.sleep(0)

    async def read(self) -> Any:
        message = await self._next_message()
        if message is None:
            self._raise_for_status()
            return grpc.aio.EOF
        return self._deserialize(message)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self._next_message()) is not None:
            yield self._deserialize(message)
        self._raise_for_status()

    def cancel(self) -> bool:
        if self.done():
            return False
        self.end(StatusCode.CANCELLED, CANCELLED_LOCALLY, ())
        return True

    # Called by the channel.

    def on_connected(self, connection: Connection) -> None:
        network = self._channel.network
        stream = self._stream = CallStream(
            method=self._method,
            connection=connection,
            to_server=MessageInbox(connection.loops[TO_SERVER]),
            to_client=self._inbox,
            window=FlowControlWindow(
                network.window_bytes.get(self._channel.loop.name, WINDOW_BYTES), connection.loops[TO_SERVER]
            ),
            metadata=self._metadata,
            deadline=self._deadline,
            on_ended=self.end,
        )
        self._inbox.on_taken = self._on_taken
        server: Any = connection.sides[TO_SERVER]
        network.deliver(stream, TO_SERVER, server.on_call, stream)
        if self._request is not None:
            self._send(stream, self._request)
        self._started.set()

    def end(self, code: StatusCode, details: str, trailing: Metadata) -> None:
        """End the call once, with the server's status or with one of this side."""
        if self._status:
            return
        self._status = code, details, trailing
        if self._timer:
            self._timer.cancel()
        self._inbox.close()
        self._started.set()
        self._channel.remove_call(self)
        if self._stream and code in (StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED):
            server: Any = self._stream.connection.sides[TO_SERVER]
            self._channel.network.deliver(self._stream, TO_SERVER, server.cancel_call, self._stream)

    def _on_taken(self, count: int) -> None:
        assert self._stream
        if acknowledged := self._stream.window.on_read(count):
            self._channel.network.deliver(self._stream, TO_SERVER, self._stream.window.on_window_update, acknowledged)

    def _on_deadline(self) -> None:
        self.end(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())

    def _send(self, stream: CallStream, frame: Any) -> None:
        packed = self._serialize(frame)
        self._channel.network.send(stream, TO_SERVER, frame, stream.to_server.put, packed)

    async def _next_message(self) -> bytes | None:
        try:
            return await self._inbox.receive()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _raise_for_status(self) -> None:
        assert self._status
        code, details, trailing = self._status
        if code is StatusCode.CANCELLED and details == CANCELLED_LOCALLY:
            raise asyncio.CancelledError
        if code is not StatusCode.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details)


class FakeUnaryCall(FakeCall):
    """A call with one response, which is awaited."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self.read().__await__()
