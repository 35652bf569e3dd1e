"""One GET over HTTP/1.1, for metrics of endpoints. A client of HTTP would be a new dependency."""

import asyncio
import re
from collections.abc import Mapping

MAX_BODY_BYTES = 8 << 20
MAX_HEAD_LINES = 100


class ResponseInvalid(ValueError):
    """The response is not one of HTTP with status 200, or it is too large."""


async def get(address: str, path: str) -> bytes:
    """Return the body of `path` at host:port. Raises OSError, EOFError or ResponseInvalid. It has no timeout."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=1 << 16)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode())
        await _check_status(reader)
        return await _body(reader, await _headers(reader))
    except asyncio.LimitOverrunError:
        raise ResponseInvalid("a line of the response is too long") from None
    finally:
        writer.close()


async def _check_status(reader: asyncio.StreamReader) -> None:
    line = await reader.readuntil(b"\n")
    if not re.match(rb"HTTP/1\.\d 200\s", line):
        raise ResponseInvalid(f"the response begins with {line[:40]!r}")


async def _headers(reader: asyncio.StreamReader) -> Mapping[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    while line := (await reader.readuntil(b"\n")).strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip().lower()
        if len(headers) > MAX_HEAD_LINES:
            raise ResponseInvalid("the response has too many headers")
    return headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[bytes, bytes]) -> bytes:
    if headers.get(b"transfer-encoding") == b"chunked":
        return await _chunks(reader)
    if length := headers.get(b"content-length", b""):
        return await reader.readexactly(_checked_size(length, 10))
    body = bytearray()
    while piece := await reader.read(1 << 16):
        body += piece
        _check_total(len(body))
    return bytes(body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := _checked_size((await reader.readuntil(b"\n")).partition(b";")[0].strip(), 16):
        _check_total(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readuntil(b"\n")
    return bytes(body)


def _checked_size(digits: bytes, base: int) -> int:
    try:
        size = int(digits, base)
    except ValueError:
        size = -1
    if size < 0:
        raise ResponseInvalid(f"{digits[:20]!r} is not a size")
    _check_total(size)
    return size


def _check_total(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise ResponseInvalid(f"the response is larger than {MAX_BODY_BYTES} bytes")
