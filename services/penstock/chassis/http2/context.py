"""The context of one call at the server: what handlers and interceptors use of `grpc.aio.ServicerContext`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NoReturn

import grpc
import structlog

from penstock.chassis.http2.connection import Connection
from penstock.chassis.http2.frames import ErrorCode
from penstock.chassis.http2.metadata import CONTENT_TYPE, Metadata, Value, encoded, status_headers
from penstock.chassis.http2.stream import Stream, StreamBroken

log = structlog.get_logger()

_RESPONSE_HEADERS = ((b":status", b"200"), CONTENT_TYPE)


class CallContext:
    """One call. One task at a time may read, and one may write. Both raise CancelledError once the client is gone."""

    def __init__(self, connection: Connection, stream: Stream, metadata: Metadata, deadline: float | None) -> None:
        self._connection = connection
        self._stream = stream
        self._metadata = metadata
        self._deadline = deadline  # by the loop's clock
        self._deserialize: Callable[[bytes], Any] = bytes
        self._serialize: Callable[[Any], bytes] = bytes
        self._code: Any = grpc.StatusCode.OK
        self._details = ""
        self._trailing: Metadata = ()

    def __repr__(self) -> str:
        return f"<CallContext {self.peer()} {self._stream!r}>"

    def use(self, handler: Any) -> None:
        """Take the serializers of the method's handler."""
        self._deserialize = handler.request_deserializer or bytes
        self._serialize = handler.response_serializer or bytes

    # Of the client.

    def peer(self) -> str:
        """Return ipv4:host:port, ipv6:[host]:port or unix:."""
        return self._connection.peer

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the security of the connection under the names of gRPC."""
        return self._connection.auth_context

    def disconnect(self, reason: str) -> None:
        """Close the connection of the client, with all of its calls."""
        log.warning("client_disconnected", peer=self.peer(), because=reason)
        self._connection.close(reason)

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - asyncio.get_running_loop().time())

    # Messages.

    async def read(self) -> Any:
        """Return the next message, or `grpc.aio.EOF`. Raises the error of a message that cannot be received."""
        try:
            message = await self._stream.read()
        except StreamBroken:
            raise asyncio.CancelledError from None
        return grpc.aio.EOF if message is None else self._deserialize(message)

    async def messages(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def write(self, message: Any) -> None:
        self._send_headers()
        try:
            await self._stream.write(self._serialize(message))
        except StreamBroken:
            raise asyncio.CancelledError from None

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, Value]]) -> None:
        self._send_headers(metadata)
        self._connection.flush()

    def _send_headers(self, metadata: Iterable[tuple[str, Value]] = ()) -> None:
        if not self._stream.is_answered and not self._stream.broken:
            self._stream.is_answered = True
            self._connection.send_headers(self._stream.id, [*_RESPONSE_HEADERS, *encoded(metadata)])

    # Status.

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return self._details

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, Value]]) -> None:
        self._trailing = tuple(metadata)

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Iterable[tuple[str, Value]] = ()
    ) -> NoReturn:
        """End the call with a status. Raises AbortError."""
        self._code, self._details, self._trailing = code, details, tuple(trailing_metadata)
        raise grpc.aio.AbortError

    def end(self, code: grpc.StatusCode | None = None, details: str = "", trailing: Metadata = ()) -> None:
        """Send the status once all messages are sent. `code` replaces that of the handler."""
        if code is not None:
            self._code, self._details, self._trailing = code, details, trailing
        if not self._stream.broken:
            self._stream.end_with(self._send_status)
            self._connection.flush()

    def _send_status(self) -> None:
        leading = () if self._stream.is_answered else _RESPONSE_HEADERS
        headers = [*leading, *status_headers(self._code, self._details), *encoded(self._trailing)]
        self._connection.send_headers(self._stream.id, headers, is_end=True)
        if self._stream.is_ended:
            self._connection.forget(self._stream)
        else:  # the client may still send messages, which no one reads
            self._connection.reset(self._stream, ErrorCode.NO_ERROR)
