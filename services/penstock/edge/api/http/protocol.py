"""One HTTP connection: uvicorn's protocol within the limits of its listener.

Before a caller is known, its connection holds at most 64 KiB of headers and one read of its body (256 KiB at most), and
no further byte is read. Requests are not slowed: their phases are attributes, and one timer checks all connections.
"""

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from penstock.chassis.errors import Overloaded, PenstockError
from penstock.chassis.streams.ticks import delay_to_tick
from penstock.edge.api.http.connections import (
    ConnectionLimits,
    ConnectionState,
    ConnectionTable,
    Phase,
)
from penstock.edge.api.http.exchange import IDENTIFIED, ON_DISCONNECT, WRITER
from penstock.edge.api.openai.body.fields import HeadStalled, HeadTooLarge
from penstock.edge.api.openai.errors import http_error
from penstock.edge.request import limits as request_limits

SWEEP_INTERVAL_S = 1.0


class HttpDoor:
    """The connections of one listener."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.table = ConnectionTable(limits)
        self.connections: set[BoundedHttpProtocol] = set()

    def __repr__(self) -> str:
        return f"<HttpDoor {self.table!r}>"

    @property
    def protocol(self) -> Any:
        """What uvicorn calls to make the protocol of a connection."""
        return partial(BoundedHttpProtocol, door=self)

    async def close_overdue(self) -> None:
        """Close connections that exceed a time limit. Runs beside the server."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(delay_to_tick(SWEEP_INTERVAL_S))
            self.sweep(loop.time())

    def sweep(self, now: float) -> None:
        for connection in [each for each in self.connections if each.state.is_overdue(self.table.limits, now)]:
            connection.close_overdue()


class _ReleasingFlow(FlowControl):
    """Flow control that reports when the application reads a body."""

    def __init__(self, transport: asyncio.Transport, connection: "BoundedHttpProtocol") -> None:
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        self._connection.release_held()
        super().resume_reading()


class _ChunkWriter:
    """The `ChunkWriter` of one response. Frames as uvicorn's own `send` does."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def can_write(self) -> bool:
        cycle = self._cycle
        return not (
            cycle.flow.write_paused or cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding
        )

    def write(self, frame: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection within the limits of `door`."""

    def __init__(self, *args: Any, door: HttpDoor, **options: Any) -> None:
        super().__init__(*args, **options)
        self.state = ConnectionState()
        self._door = door
        self._source = ""
        self._is_counted = False
        self._is_in_head = True
        self._head_bytes = 0
        self._framing_bytes = 0
        self._held_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.flow = _ReleasingFlow(transport, self)
        self.state.since = self.loop.time()
        self._source = self.client[0] if self.client else "unix"
        try:
            self._door.table.open(self._source)
        except Overloaded as error:
            self._refuse(error)
            return
        self._is_counted = True
        self._door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        is_answered = self.cycle is None or self.cycle.response_complete
        super().connection_lost(exc)
        if not is_answered and (on_disconnect := self.cycle.scope["state"].pop(ON_DISCONNECT, None)):
            on_disconnect()
        self.release_held()
        self._door.connections.discard(self)
        if self._is_counted:
            self._is_counted = False
            self._door.table.close(self._source)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
            super().data_received(data)
        else:
            before = len(self.cycle.body)
            super().data_received(data)
            if len(self.cycle.body) == before:
                self._count_framing(len(data))
        if self.transport.is_closing():
            return
        if self._is_in_head:
            if self._head_bytes:
                self._check_head(len(data))
        elif self.cycle.body and self.cycle.more_body and not self.cycle.response_complete:
            self._pause_body()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._head_bytes > request_limits.HEAD_BYTES or len(self.headers) > request_limits.HEADERS:
            self._check_headers()
        self._head_bytes = self._framing_bytes = 0
        self.release_held()
        self.state.enter(Phase.EXCHANGE, 0.0)
        super().on_headers_complete()
        self.cycle.scope["state"][WRITER] = _ChunkWriter(self.cycle)

    def on_message_complete(self) -> None:
        self._is_in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.state.is_identified = IDENTIFIED in self.scope["state"]
        if not self.pipeline:
            begun = Phase.HEAD if self._head_bytes else Phase.IDLE
            self.state.enter(begun if self._is_in_head else Phase.UNREAD, self.loop.time())
            self.cycle.body.clear()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():  # else it was refused with a status of its own
            super().send_400_response(msg)

    def release_held(self) -> None:
        """Uncount the bytes that were held while the caller was not known."""
        if self._held_bytes:
            self._door.table.release(self._held_bytes)
            self._held_bytes = 0

    def close_overdue(self) -> None:
        if self.state.phase is Phase.HEAD:
            self._refuse(HeadStalled(self._door.table.limits.header_timeout))
        else:
            self._door.table.refused[f"CONNECTION_{self.state.phase.upper()}"] += 1
            self.transport.close()

    def _check_head(self, size: int) -> None:
        """Count the bytes of headers that are not complete."""
        if self.state.phase is Phase.IDLE:
            self.state.enter(Phase.HEAD, self.loop.time())
        if self._head_bytes > request_limits.HEAD_BYTES:
            self._refuse(HeadTooLarge())
            return
        self._hold(size)

    def _check_headers(self) -> None:
        """Refuse complete headers that are too large. The bytes received with them may belong to the body."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > request_limits.HEAD_BYTES or len(self.headers) > request_limits.HEADERS:
            error = HeadTooLarge()
            self._refuse(error)
            raise error  # ends the parser, which reports it to `send_400_response`

    def _count_framing(self, size: int) -> None:
        """Bound what is sent after the headers and belongs to no body: trailers, and a body that no one reads."""
        self._framing_bytes += size
        is_unread = self.state.phase is Phase.UNREAD
        if self._framing_bytes > (request_limits.BODY_BYTES if is_unread else request_limits.HEAD_BYTES):
            self._door.table.record(HeadTooLarge())
            self.transport.close()

    def _pause_body(self) -> None:
        """Read no further until the application asks for the body, which it does once it knows the caller."""
        self.flow.pause_reading()
        if IDENTIFIED not in self.scope["state"]:
            self._hold(len(self.cycle.body) - self._held_bytes)

    def _hold(self, size: int) -> None:
        try:
            self._door.table.hold(size)
        except Overloaded as error:
            self._refuse(error)
        else:
            self._held_bytes += size

    def _refuse(self, error: PenstockError) -> None:
        """Answer with a status and close the connection."""
        self._door.table.record(error)
        response = http_error(error)
        lines = [STATUS_LINE[response.status], b"connection: close\r\n"]
        lines += [f"{name}: {value}\r\n".encode() for name, value in response.headers.items()]
        lines += [f"content-length: {len(response.body)}\r\n\r\n".encode(), response.body]
        self.transport.write(b"".join(lines))
        self.transport.close()
