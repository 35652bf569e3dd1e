"""Client of gRPC over HTTP/2. Each call has a connection of its own: there are few, and a stream between tiers is long.

A call fails with the connection that it is on, and the next call connects again. A peer that neither reads nor answers
is detected by heartbeats on the stream or by the timeout of the call, not here.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from penstock.chassis.http2.call import Decoder, Encoder, Method, StreamCall
from penstock.chassis.http2.connection import Connection
from penstock.chassis.http2.limits import Http2Limits
from penstock.chassis.http2.metadata import CONTENT_TYPE, Metadata, Value, encoded, encoded_timeout
from penstock.chassis.http2.stream import Header

CONNECT_TIMEOUT_S = 2.0  # of a connection and its TLS handshake
TLS_CLOSE_TIMEOUT_S = 1.0
MAX_PORT_DIGITS = 5


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How a client knows a server: the context of the connection, and the DNS name that the certificate must have."""

    context: Callable[[], ssl.SSLContext]  # the current one, with the certificate of this process
    name: str


class Http2Channel:
    """Opens calls to one address. It offers what generated stubs use of `grpc.aio.Channel`."""

    def __init__(self, address: str, tls: ServerTls | None, *, message_bytes: int) -> None:
        self._address = address
        self._tls = tls
        self._limits = Http2Limits(message_bytes=message_bytes)
        self._calls: set[StreamCall] = set()

    def __repr__(self) -> str:
        return f"<Http2Channel {self._address}, {len(self._calls)} calls>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel all calls."""
        for call in list(self._calls):
            call.cancel()
        await asyncio.sleep(0)  # in which the sockets are closed

    def stream_stream(
        self, method: str, request_serializer: Encoder, response_deserializer: Decoder, **_: object
    ) -> Callable[..., StreamCall]:
        called = Method(method, request_serializer, response_deserializer)

        def call(*, metadata: Iterable[tuple[str, Value]] = (), timeout: float | None = None) -> StreamCall:
            opened = StreamCall(self, called, tuple(metadata), timeout)
            self._calls.add(opened)
            return opened

        return call

    def unary_unary(
        self, method: str, request_serializer: Encoder, response_deserializer: Decoder, **_: object
    ) -> Callable[..., Any]:
        opened = self.stream_stream(method, request_serializer, response_deserializer)

        async def call(
            request: Any, *, timeout: float | None = None, metadata: Iterable[tuple[str, Value]] = ()
        ) -> Any:
            stream = opened(metadata=metadata, timeout=timeout)
            try:
                return await stream.exchange(request)
            finally:
                stream.cancel()

        return call

    def unary_stream(self, *_: object, **__: object) -> None:
        """Not offered: no tier calls a method of this kind. Generated stubs ask for all methods of a service."""

    stream_unary = unary_stream

    async def connect(self) -> Connection:
        """Open a connection. Raises OSError, also for errors of TLS, and UnicodeError for a host that is none."""
        loop, connection = asyncio.get_running_loop(), Connection(self._limits, is_client=True)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if self._address.startswith("unix:"):
                await loop.create_unix_connection(lambda: connection, self._address.removeprefix("unix:"))
                return connection
            host, port = _host_and_port(self._address)
            if self._tls is None:
                await loop.create_connection(lambda: connection, host, port)
                return connection
            transport, _ = await loop.create_connection(
                lambda: connection,
                host,
                port,
                ssl=self._tls.context(),
                server_hostname=self._tls.name,
                ssl_handshake_timeout=CONNECT_TIMEOUT_S,
                ssl_shutdown_timeout=TLS_CLOSE_TIMEOUT_S,
            )
        names = dict.fromkeys(transport.get_extra_info("ssl_object").getpeercert().get("subjectAltName", ()))
        if ("DNS", self._tls.name) not in names:
            connection.close("wrong server")
            raise ssl.SSLCertVerificationError(1, f"the server's certificate does not have the name {self._tls.name}")
        return connection

    def remove(self, call: StreamCall) -> None:
        self._calls.discard(call)

    def request_headers(self, path: str, metadata: Metadata, timeout: float | None) -> list[Header]:
        limit = [] if timeout is None else [(b"grpc-timeout", encoded_timeout(timeout))]
        return [
            (b":method", b"POST"),
            (b":scheme", b"https" if self._tls else b"http"),
            (b":path", path.encode()),
            (b":authority", (self._tls.name if self._tls else self._address).encode()),
            (b"te", b"trailers"),
            CONTENT_TYPE,
            *limit,
            *encoded(metadata),
        ]


def _host_and_port(address: str) -> tuple[str, int]:
    """Raises OSError for an address that is none, because peers send addresses."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and len(port) <= MAX_PORT_DIGITS):
        raise OSError(f"{address[:64]!r} is not host:port")
    return host.strip("[]"), int(port)
