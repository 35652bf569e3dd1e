"""A TCP relay between two processes, which can delay all bytes and be cut in one or both directions.

A relay that is cut loses no bytes and closes no connection: bytes wait, as TCP would retransmit them. Both ends keep an
open, silent connection, and the waiting bytes arrive, stale, when the relay is restored.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import NamedTuple

CHUNK_BYTES = 64 << 10
LINE_BYTES = 4 << 20  # in flight in one direction: 200 MB/s at a delay of 20 ms
END = b""  # the chunk that ends a stream


class CutDirection(Enum):
    """Directions that are cut, as seen from the process that opened the connection."""

    BOTH = "both directions"
    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


class RelayEnds(NamedTuple):
    """Names of the processes at both ends; `client` is a tier if a relay serves several processes."""

    client: str
    server: str


class DelayLine:
    """Chunks in flight in one direction, each due `delay_s` after it was sent. No I/O; `now` is passed in."""

    def __init__(self, delay_s: float, capacity: int = LINE_BYTES) -> None:
        self._delay_s = delay_s
        self._capacity = capacity  # bytes; the chunk that exceeds it is the last one that is taken
        self._chunks: deque[tuple[float, bytes]] = deque()  # with the times at which they are due
        self.held_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._chunks

    @property
    def is_full(self) -> bool:
        return self.held_bytes >= self._capacity

    def push(self, chunk: bytes, now: float) -> None:
        self._chunks.append((now + self._delay_s, chunk))
        self.held_bytes += len(chunk)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the oldest chunk is due, 0 if it is due. Raises IndexError if there is none."""
        return max(0.0, self._chunks[0][0] - now)

    def pop(self) -> bytes:
        """Remove and return the oldest chunk. Raises IndexError if there is none."""
        _, chunk = self._chunks.popleft()
        self.held_bytes -= len(chunk)
        return chunk


class TcpRelay:
    """Forwards every connection to `address` to `target`, each byte `delay_s` later."""

    def __init__(self, ends: RelayEnds, target: str, *, delay_s: float = 0.0) -> None:
        self.ends = ends
        self.address = ""
        self._target = target
        self._delay_s = delay_s
        self._open_events = {CutDirection.UPSTREAM: asyncio.Event(), CutDirection.DOWNSTREAM: asyncio.Event()}
        self._connections: set[asyncio.Task[None]] = set()
        self.has_blocked_data = False  # since the last cut
        self.restore()

    def __repr__(self) -> str:
        cut = [direction.value for direction, event in self._open_events.items() if not event.is_set()]
        return f"<TcpRelay {self.ends.client} > {self.ends.server}{', cut: ' + ' and '.join(cut) if cut else ''}>"

    def cut(self, direction: CutDirection) -> None:
        self.has_blocked_data = False
        for each, event in self._open_events.items():
            if direction in (each, CutDirection.BOTH):
                event.clear()

    def restore(self) -> None:
        for event in self._open_events.values():
            event.set()

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[None]:
        """Accept connections on loopback for the duration of the block, which closes them all.

        Port 0 takes a free port. Raises OSError if the port is in use.
        """
        async with await asyncio.start_server(self._accept, "127.0.0.1", port) as server:
            host, bound = server.sockets[0].getsockname()
            self.address = f"{host}:{bound}"
            try:
                yield
            finally:
                for each in self._connections:
                    each.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with suppress(OSError, asyncio.CancelledError):  # the target or this relay has closed the connection
            await self._open_events[CutDirection.UPSTREAM].wait()
            host, _, port = self._target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._forward(reader, far_writer, CutDirection.UPSTREAM))
                    group.create_task(self._forward(far_reader, writer, CutDirection.DOWNSTREAM))
            finally:
                far_writer.transport.abort()
        writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: CutDirection
    ) -> None:
        line, changed = DelayLine(self._delay_s), asyncio.Condition()
        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(_receive(reader, line, changed))
            with suppress(OSError):  # the far end has closed the connection
                await self._send(writer, line, changed, self._open_events[direction])
            receiving.cancel()

    async def _send(
        self, writer: asyncio.StreamWriter, line: DelayLine, changed: asyncio.Condition, is_open: asyncio.Event
    ) -> None:
        while True:
            async with changed:
                await changed.wait_for(lambda: not line.is_empty)
            await asyncio.sleep(line.wait_s(time.monotonic()))
            self.has_blocked_data |= not is_open.is_set()
            await is_open.wait()  # the end of the stream waits like any byte
            chunk = line.pop()
            if chunk == END:
                writer.write_eof()
                return
            writer.write(chunk)
            await writer.drain()
            async with changed:
                changed.notify()


async def _receive(reader: asyncio.StreamReader, line: DelayLine, changed: asyncio.Condition) -> None:
    """Put what arrives into `line`, up to the end of the stream, while the line is not full."""
    chunk = CHUNK_BYTES * b" "
    while chunk != END:
        async with changed:
            await changed.wait_for(lambda: not line.is_full)
        try:
            chunk = await reader.read(CHUNK_BYTES)
        except OSError:  # a reset ends the stream for the other end, too
            chunk = END
        line.push(chunk, time.monotonic())
        async with changed:
            changed.notify()
