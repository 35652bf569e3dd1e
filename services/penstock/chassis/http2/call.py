"""One call of a client over a connection of its own."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc

from penstock.chassis.errors import PenstockError
from penstock.chassis.http2.connection import Connection
from penstock.chassis.http2.frames import ErrorCode
from penstock.chassis.http2.metadata import Metadata, decoded, status_in
from penstock.chassis.http2.stream import Header, Stream, StreamBroken

STREAM_ID = 1

Encoder = Callable[[Any], bytes]
Decoder = Callable[[bytes], Any]

_STATUS_BY_RESET = {
    ErrorCode.REFUSED_STREAM: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: grpc.StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: grpc.StatusCode.PERMISSION_DENIED,
}


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service."""

    path: str  # /package.Service/Method
    serialize: Encoder
    deserialize: Decoder


class Caller(Protocol):
    """The channel of a call."""

    def connect(self) -> Awaitable[Connection]:
        """Raises OSError or UnicodeError."""

    def request_headers(self, path: str, metadata: Metadata, timeout: float | None) -> list[Header]: ...

    def remove(self, call: "StreamCall") -> None:
        """The call has ended."""


class StreamCall:
    """One call. One task at a time may read, and one may write. Both raise AioRpcError once the call has failed."""

    def __init__(self, channel: Caller, method: Method, metadata: Metadata, timeout: float | None) -> None:
        self._channel = channel
        self._method = method
        self._metadata = metadata
        self._timeout = timeout  # s
        self._connection: Connection | None = None
        self._stream: Stream | None = None
        self._failure: grpc.aio.AioRpcError | None = None
        self._has_succeeded = False
        self._timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, self._time_out)
        self._starting = asyncio.create_task(self._start())
        self._starting.add_done_callback(_retrieve)

    def __repr__(self) -> str:
        return f"<StreamCall {self._method.path} {'done' if self.done() else 'open'}>"

    async def _start(self) -> Stream:
        try:
            connection = self._connection = await self._channel.connect()
        except (OSError, UnicodeError) as error:
            raise self._fail(grpc.StatusCode.UNAVAILABLE, _connect_failure(error)) from error
        stream = connection.new_stream(STREAM_ID)
        headers = self._channel.request_headers(self._method.path, self._metadata, self._timeout)
        connection.send_headers(STREAM_ID, headers)
        connection.flush()
        self._stream = stream
        return stream

    async def _started(self) -> Stream:
        if self._failure:
            raise self._failure
        try:
            return await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._failure and self._starting.cancelled():  # by `cancel`, not the caller's task
                raise self._failure from None
            raise

    async def write(self, message: Any) -> None:
        if self.done():
            self._raise_ended()
        stream = self._stream or await self._started()
        try:
            await stream.write(self._method.serialize(message))
        except StreamBroken as broken:
            raise self._failed(stream, broken) from None

    async def read(self) -> Any:
        """Return the next message, or `grpc.aio.EOF` at the end of a call that succeeded."""
        if self._failure:
            raise self._failure
        stream = self._stream or await self._started()
        try:
            message = await stream.read()
        except StreamBroken as broken:
            raise self._failed(stream, broken) from None
        except PenstockError as fault:  # of a message
            raise self._fail(fault.code, fault.message) from None
        if message is not None:
            return self._method.deserialize(message)
        self._end(stream)
        return grpc.aio.EOF

    async def exchange(self, request: Any) -> Any:
        """Send the only message of the call and return its answer. Raises AioRpcError."""
        stream = self._stream or await self._started()
        try:
            await stream.write(self._method.serialize(request))
            assert self._connection
            stream.end_with(partial(self._connection.end_stream, stream))
            self._connection.flush()
        except StreamBroken as broken:
            if not stream.headers:
                raise self._failed(stream, broken) from None
        response = await self.read()
        if response is grpc.aio.EOF:
            raise self._fail(grpc.StatusCode.INTERNAL, "the server sent no response")
        if await self.read() is not grpc.aio.EOF:
            raise self._fail(grpc.StatusCode.INTERNAL, "the server sent several responses to one request")
        return response

    def cancel(self) -> bool:
        """End the call and its connection. Returns False if it had ended."""
        if self.done():
            return False
        self._fail(grpc.StatusCode.CANCELLED, "cancelled by the client")
        return True

    def done(self) -> bool:
        return self._has_succeeded or self._failure is not None

    async def code(self) -> grpc.StatusCode:
        """Return the status of a call that has ended."""
        return self._failure.code() if self._failure else grpc.StatusCode.OK

    async def details(self) -> str:
        return (self._failure.details() or "") if self._failure else ""

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Return what has arrived; empty before."""
        return grpc.aio.Metadata(*decoded(self._stream.headers if self._stream else ()))

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return self._failure.trailing_metadata() if self._failure else grpc.aio.Metadata()

    def _time_out(self) -> None:
        self._fail(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    def _end(self, stream: Stream) -> None:
        """The server has ended the stream: succeed, or raise the status."""
        status = dict(stream.headers).get(b":status", b"")
        if status != b"200":
            raise self._fail(
                grpc.StatusCode.UNKNOWN, f"the server answered with HTTP status {status.decode('latin-1')}"
            )
        trailers = stream.trailers or stream.headers  # a status without messages is sent as headers alone
        code, details = status_in(trailers)
        if code is not grpc.StatusCode.OK:
            raise self._fail(code, details, decoded(trailers))
        self._has_succeeded = True
        self._close()

    def _failed(self, stream: Stream, broken: Exception) -> Exception:
        """Return the error of a stream that has broken: the status, if the server sent one before it."""
        if self.done():
            return self._failure or asyncio.InvalidStateError("the call has ended")
        if stream.is_ended and (stream.trailers or stream.headers):
            code, details = status_in(stream.trailers or stream.headers)
            if code is not grpc.StatusCode.OK:
                return self._fail(code, details, decoded(stream.trailers or stream.headers))
        error_code = getattr(broken, "error_code", None)
        if error_code is None:
            return self._fail(grpc.StatusCode.UNAVAILABLE, str(broken))
        return self._fail(_STATUS_BY_RESET.get(error_code, grpc.StatusCode.INTERNAL), str(broken))

    def _fail(self, code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> grpc.aio.AioRpcError:
        """Record the end of the call, unless it has ended, and return its error."""
        if self._failure is None:
            self._failure = grpc.aio.AioRpcError(
                code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details
            )
            self._close()
        return self._failure

    def _raise_ended(self) -> NoReturn:
        raise self._failure or asyncio.InvalidStateError("the call has ended")

    def _close(self) -> None:
        self._channel.remove(self)
        if self._timer:
            self._timer.cancel()
        if not self._starting.done() and self._starting is not asyncio.current_task():
            self._starting.cancel()
        if self._stream and self._connection:
            self._connection.reset(self._stream, ErrorCode.CANCEL)
            self._stream.on_break(StreamBroken("the call has ended"))
        if self._connection:
            self._connection.close("the call has ended")


def _connect_failure(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {getattr(error, 'verify_message', '') or error}"
    if isinstance(error, TimeoutError):
        return "no connection in time"
    return f"failed to connect: {error}"


def _retrieve(starting: "asyncio.Task[Stream]") -> None:
    """Mark the error of the start as retrieved: a call that is cancelled before it is used has no reader."""
    if not starting.cancelled():
        starting.exception()
