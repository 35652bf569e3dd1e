"""One gRPC call over a raw connection, with message bytes and headers as given."""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.proofs.hostile.wire.http2 import Headers, Http2Connection, StreamAnswer, open_http2

PREFIX_BYTES = 5  # of a gRPC message: a flag and the length
OK, UNKNOWN, INTERNAL = 0, 2, 13  # statuses of gRPC


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The end of one call, or its state when the attacker gave up."""

    status: int | None = None  # of gRPC; None: none was received
    reason: str = ""  # grpc-message, or the error of the connection
    http_status: str = ""
    messages: tuple[bytes, ...] = ()
    was_refused: bool = False  # the connection or the stream was closed without a status
    is_open: bool = False  # the call is still open

    @property
    def is_ok(self) -> bool:
        return self.status == OK

    @property
    def is_internal_error(self) -> bool:
        return self.status in (UNKNOWN, INTERNAL)


def framed(message: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """Return a message with its prefix; `length` replaces the true length."""
    return bytes([flag]) + (len(message) if length is None else length).to_bytes(4) + message


def call_headers(path: str, extra: Headers = ()) -> list[tuple[str | bytes, str | bytes]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *extra,
    ]


async def call(
    address: tuple[str, int],
    path: str,
    body: bytes,
    *,
    headers: Headers = (),
    tls: ssl.SSLContext | None = None,
    ends: bool = True,
    timeout: float = 3.0,
    settle: float = 0.4,
) -> CallResult:
    """Send `body`, framed messages, as one call on its own connection.

    Wait up to `timeout` s for the end of the call; after a message of the server, `settle` s more, so that a server
    that answers and then refuses counts as refusing.
    """
    try:
        async with open_http2(address, tls) as connection:
            return await call_on(
                connection, call_headers(path, headers), body, ends=ends, timeout=timeout, settle=settle
            )
    except (OSError, TimeoutError) as error:  # TLS errors are OSErrors
        return CallResult(was_refused=True, reason=type(error).__name__)


async def call_on(
    connection: Http2Connection, headers: Headers, body: bytes, *, ends: bool, timeout: float, settle: float
) -> CallResult:
    stream = await connection.open_stream(headers, ends=ends and not body)
    answer = connection.answers[stream]
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await connection.send_data(stream, body, ends=ends)
            while not answer.has_ended and not connection.closed.is_set():
                answer.changed.clear()
                limit = settle if messages_of(answer.data) else None
                async with asyncio.timeout(limit):
                    await answer.changed.wait()
    return _result(answer, is_closed=connection.closed.is_set())


def _result(answer: StreamAnswer, *, is_closed: bool) -> CallResult:
    status = answer.header(b"grpc-status")
    return CallResult(
        status=int(status) if status.isdigit() else None,
        reason=answer.header(b"grpc-message"),
        http_status=answer.header(b":status"),
        messages=messages_of(answer.data),
        was_refused=not status and (is_closed or answer.has_ended),
        is_open=not status and not is_closed and not answer.has_ended,
    )


def messages_of(data: Sequence[int]) -> tuple[bytes, ...]:
    """Return the whole messages at the start of a stream's data."""
    found, rest = [], bytes(data)
    while len(rest) >= PREFIX_BYTES and len(rest) >= (end := PREFIX_BYTES + int.from_bytes(rest[1:PREFIX_BYTES])):
        found.append(rest[PREFIX_BYTES:end])
        rest = rest[end:]
    return tuple(found)
