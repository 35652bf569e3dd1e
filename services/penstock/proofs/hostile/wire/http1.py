"""Raw HTTP/1.1: sends bytes as they are and splits what comes back into responses."""

import asyncio
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.proofs.hostile.wire import CONNECTION_ERRORS

CONNECT_TIMEOUT_S = 3.0  # s
SETTLE_S = 0.25  # s after the last byte of a response in which a second response may begin
READ_BYTES = 1 << 16
KEPT_BYTES = 1 << 18
CHUNK_BYTES = 1 << 18

STATUS_LINE = re.compile(rb"^HTTP/1\.[01] (\d{3})", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResult:
    """What a server sent for some bytes."""

    statuses: tuple[int, ...] = ()  # of all responses; empty: none
    body: bytes = b""  # all that was received, with headers
    was_refused: bool = False  # the connection was closed or refused without a response

    @property
    def has_success(self) -> bool:
        return any(200 <= status < 300 for status in self.statuses)

    @property
    def is_internal_error(self) -> bool:
        return any(status == 500 for status in self.statuses)


async def exchange(
    address: tuple[str, int], sent: bytes, *, tls: ssl.SSLContext | None = None, timeout: float = 3.0
) -> HttpResult:
    """Send bytes on a new connection; read until it is closed, or is silent after a response, or `timeout` s."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*address, ssl=tls)
    except (OSError, TimeoutError):
        return HttpResult(was_refused=True)
    try:
        received, is_closed = await _send_and_read(reader, writer, sent, timeout)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
    statuses = tuple(int(each) for each in STATUS_LINE.findall(received))
    return HttpResult(statuses=statuses, body=received, was_refused=is_closed and not statuses)


async def _send_and_read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes, timeout: float
) -> tuple[bytes, bool]:
    """Return the bytes received, and whether the server closed the connection."""
    received = bytearray()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            with suppress(*CONNECTION_ERRORS):  # the server may refuse the rest and has answered before
                for start in range(0, len(sent), CHUNK_BYTES):
                    writer.write(sent[start : start + CHUNK_BYTES])
                    await writer.drain()
            try:
                while True:
                    async with asyncio.timeout(SETTLE_S if received else None):
                        chunk = await reader.read(READ_BYTES)
                    if not chunk:
                        return bytes(received), True
                    received += chunk[: KEPT_BYTES - len(received)]
            except TimeoutError:  # a subclass of OSError
                return bytes(received), False
            except OSError:
                return bytes(received), True
    return bytes(received), False


def request(
    method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"", *, host: str = "localhost"
) -> bytes:
    """Return a well-formed request; a body gets its length unless `headers` has a framing of its own."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    framing = {"content-length", "transfer-encoding"}
    if body and not framing & {name.lower() for name, _ in headers}:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
