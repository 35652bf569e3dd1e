"""One HTTP request and its response, and the byte budget of request bodies."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from penstock.chassis.errors import Overloaded, PenstockError
from penstock.chassis.ids import new_id
from penstock.chassis.observability.spans import open_span
from penstock.chassis.observability.trace_context import traceparent_or_empty
from penstock.edge.api.http.api_formats import OPENAI
from penstock.edge.api.openai.body.fields import BodyStalled, BodyTooLarge, BodyTooSlow
from penstock.edge.api.openai.errors import http_error
from penstock.edge.request import limits
from penstock.edge.request.caller import credential_of, identity_header_of
from penstock.edge.request.front_times import FrontTimes, front_times
from penstock.edge.request.limit_headers import Headers
from penstock.edge.request.validation import is_request_id
from penstock.mesh.proxy_time import HEADER as PROXY_TIME_HEADER
from penstock.mesh.v1.admission_pb2 import Credential

RETRY_AFTER_S = 1.0  # s
# Keys in the state of a request's scope.
IDENTIFIED = "penstock.identified"  # set once the caller is known
ON_DISCONNECT = "penstock.on_disconnect"  # called once if the client disconnects before the response is complete
WRITER = "penstock.writer"  # a `ChunkWriter` of the server


class ChunkWriter(Protocol):
    """Writes to a streamed response at once, past the ASGI server, which takes 15 us for a message."""

    @property
    def can_write(self) -> bool:
        """Whether a chunked response has begun and has not ended, and the client reads."""

    def write(self, frame: bytes) -> None:
        """Write a chunk. The caller has looked at `can_write`."""


class PendingBody:
    """A body that is being received."""

    def __init__(self, budget: "BodyBudget") -> None:
        self.size = 0
        self._budget = budget

    def add(self, size: int) -> None:
        self._budget.check_room(size)
        self._budget.held_bytes += size
        self.size += size


class BodyBudget:
    """Bounds the bytes of all bodies that are being received. Once parsed, they count as held bytes of requests."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<BodyBudget {self.held_bytes}/{self.max_bytes} bytes>"

    @contextmanager
    def body(self) -> Iterator[PendingBody]:
        body = PendingBody(self)
        try:
            yield body
        finally:
            self.held_bytes -= body.size

    def check_room(self, size: int) -> None:
        """Raise Overloaded if `size` more bytes exceed the budget."""
        if self.held_bytes + size > self.max_bytes:
            text = f"this edge is reading {self.held_bytes} bytes of requests and accepts no more now"
            raise Overloaded(text, reason="EDGE_FULL", retry_after=RETRY_AFTER_S)


FINAL_WRITE_TIMEOUT_S = 1.0  # for the last frame of a stream, so that a client that does not read cannot delay a drain

JSON: Mapping[str, str] = {"content-type": "application/json"}
EVENT_STREAM: Mapping[str, str] = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # otherwise some proxies buffer the whole response
}


class ClientDisconnected(Exception):
    """The client has disconnected."""


class Exchange:
    """Reads a body within its limit, writes a response or a stream, and detects a disconnect of the client."""

    def __init__(self, scope: Any, receive: Any, send: Any, *, keepalive_interval: float, via_proxy: bool) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        given = self.header("x-request-id")
        # An invalid id is replaced; the response header returns the id in use.
        self.request_id = given if given and is_request_id(given) else new_id()
        self.parent = traceparent_or_empty(self.header("traceparent"))
        self.traceparent = self.parent  # of the exchange's own span, once `observe` has opened it
        self.began_ns = self.ended_ns = 0  # Unix; of the span
        self.failure: PenstockError | None = None  # that the client received
        self.route = ""  # of the path; empty if it is not served
        self.format = OPENAI  # of the route
        self.status = 0  # of the response; 0 until it begins
        self._scope = scope
        self._writer: ChunkWriter | None = scope.setdefault("state", {}).pop(WRITER, None)
        self._receive = receive
        self._send = send
        self._via_proxy = via_proxy  # the peer is our own proxy by its certificate
        self._keepalive_interval = keepalive_interval  # s without output before a keep-alive is sent
        self._format_failure: Callable[[PenstockError], bytes] | None = None
        self._is_writing = False
        self._written_at = 0.0  # time of the event loop's clock, s
        self._keepalive: asyncio.TimerHandle | asyncio.Task[None] | None = None  # of a stream that has not ended
        self._task: asyncio.Task[Any] | None = None  # that `abort` cancels
        self._abort_error: Exception | None = None
        # Called at a disconnect, before the handler unwinds.
        self.on_disconnect: Callable[[], None] = lambda: None
        self.limit_headers: Callable[[], Headers] = tuple

    def __repr__(self) -> str:
        return f"<Exchange {self.request_id} {self.method} {self.path} {self.status}>"

    @property
    def query(self) -> str:
        return str(self._scope.get("query_string", b""), "latin-1")

    def observe(self) -> None:
        """Open the exchange's span. Probes have none."""
        self.traceparent, self.began_ns = open_span(self.parent), time.time_ns()

    def header(self, name: str) -> str:
        """Return the first header of that name. Empty if there is none."""
        return next((value for given, value in self.headers if given == name), "")

    @property
    def credential(self) -> Credential:
        host, port = self._scope.get("client") or ("", 0)
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return credential_of(self.headers, peer, via_proxy=self._via_proxy)

    @property
    def front_times(self) -> FrontTimes:
        """The time of a proxy is believed from our own alone."""
        return front_times(self.header(PROXY_TIME_HEADER) if self._via_proxy else "", self.began_ns / 1e9)

    @property
    def identity_header(self) -> str:
        """The identity header; empty unless our own proxy sent it."""
        return identity_header_of(self.headers) if self._via_proxy else ""

    def mark_identified(self) -> None:
        """Record that the caller is known, so that its body may be read and its idle connection may stay."""
        self._scope["state"][IDENTIFIED] = True

    async def body(self, budget: BodyBudget) -> bytes:
        """Receive the body.

        Raises BodyTooLarge (at once by Content-Length), BodyStalled, BodyTooSlow, or Overloaded / EDGE_FULL.
        """
        announced = self.header("content-length")
        _check_size(int(announced) if announced.isdecimal() else 0)
        parts: list[bytes] = []
        began_at = asyncio.get_running_loop().time()
        with budget.body() as body:
            while True:
                message = await self._receive_part(body.size, began_at)
                body.add(len(message["body"]))
                _check_size(body.size)
                parts.append(message["body"])
                if not message["more_body"]:
                    return b"".join(parts)

    async def parts(self, max_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. The client is slowed down to the speed at which it is read.

        Raises BodyTooLarge (at once by Content-Length), BodyStalled or BodyTooSlow.
        """
        announced = self.header("content-length")
        _check_size(int(announced) if announced.isdecimal() else 0, max_bytes)
        size, began_at, is_complete = 0, asyncio.get_running_loop().time(), False
        while not is_complete:
            message = await self._receive_part(size, began_at)
            size += len(message["body"])
            _check_size(size, max_bytes)
            is_complete = not message["more_body"]
            yield message["body"]

    async def _receive_part(self, size: int, began_at: float) -> Any:
        """Receive more of a body of which `size` bytes have arrived since `began_at`."""
        loop = asyncio.get_running_loop()
        slowest = began_at + limits.BODY_GRACE_S + size / limits.BODY_BYTES_PER_S
        stalled = loop.time() + limits.BODY_READ_TIMEOUT_S
        timer = loop.call_at(min(slowest, stalled), self._abort_body, size, began_at, slowest < stalled)
        try:
            message = await self._receive()
        finally:
            timer.cancel()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message

    def _abort_body(self, size: int, began_at: float, is_slow: bool) -> None:  # of a timer
        if is_slow:
            self.abort(BodyTooSlow(size, asyncio.get_running_loop().time() - began_at))
        else:
            self.abort(BodyStalled(f"no further byte of the body arrived in {limits.BODY_READ_TIMEOUT_S:.0f} s"))

    # The response.

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] = JSON) -> None:
        await self._start(status, {**headers, "content-length": str(len(body))})
        await self.end(body)

    async def send_whole(self, size: int, parts: AsyncIterator[bytes], headers: Mapping[str, str]) -> None:
        """Send a body of `size` bytes in parts, as fast as the client reads. A later error cuts the connection."""
        first = await anext(parts, b"")  # its error is still a status
        await self._start(200, {**headers, "content-length": str(size)})
        await self.write(first)
        async for part in parts:
            await self.write(part)
        await self.end(b"")

    async def begin(self, frame: bytes, format_failure: Callable[[PenstockError], bytes]) -> None:
        """Begin a stream. `format_failure` formats an error that ends it."""
        self._format_failure = format_failure
        await self._start(200, EVENT_STREAM)
        self._start_keepalives()
        if frame:
            await self.write(frame)

    async def write(self, frame: bytes) -> None:
        """Write a frame of a stream. Waits while the client does not read."""
        self._is_writing = True
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._is_writing = False
        self._written_at = asyncio.get_running_loop().time()

    @property
    def can_write(self) -> bool:
        """Whether `write_now` can write a frame."""
        return not self._is_writing and self._writer is not None and self._writer.can_write

    def write_now(self, frame: bytes) -> None:
        """Write a frame of a stream at once. The caller has looked at `can_write`."""
        assert self._writer, "the server has no writer of chunks"
        self._writer.write(frame)
        self._written_at = asyncio.get_running_loop().time()

    async def end(self, frame: bytes) -> None:
        self.ended_ns = time.time_ns()
        self._is_writing = True  # stays set, because no frame may follow
        self._stop_keepalives()
        await self._send({"type": "http.response.body", "body": frame, "more_body": False})

    async def fail(self, error: PenstockError) -> None:
        """Send an error as a status, or in the stream if it has begun."""
        self.failure = error
        if not self.status:
            response = http_error(error, self.format.error_body)
            await self.respond(response.status, response.body, response.headers)
            return
        if self._format_failure:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINAL_WRITE_TIMEOUT_S):
                    await self.end(self._format_failure(error))

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self._written_at = asyncio.get_running_loop().time()
        named = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        named += [(name.encode(), value.encode("latin-1", "replace")) for name, value in self.limit_headers()]
        request_id = self.request_id.encode()
        named += [(name, request_id) for name in self.format.id_headers]
        await self._send({"type": "http.response.start", "status": status, "headers": named})

    # Aborts and disconnects.

    async def serve(self, handle: Callable[["Exchange"], Awaitable[None]]) -> None:
        """Await `handle(self)`, which `abort` and a disconnect of the client can end."""
        self._task = task = asyncio.current_task()
        assert task
        state = self._scope["state"]
        state[ON_DISCONNECT] = self._disconnect
        try:
            await handle(self)
        except asyncio.CancelledError:
            if self._abort_error is None or task.uncancel():
                raise
            raise self._abort_error from None
        finally:
            self._task = None
            state.pop(ON_DISCONNECT, None)  # a reference cycle otherwise
            self._stop_keepalives()

    def abort(self, error: Exception) -> None:
        """Raise `error` in the handler. No effect once it has ended."""
        if self._task and self._abort_error is None:
            self._abort_error = error
            self._task.cancel()

    def _disconnect(self) -> None:
        self.on_disconnect()
        self.abort(ClientDisconnected())

    def _start_keepalives(self) -> None:
        self._keepalive = asyncio.get_running_loop().call_later(self._keepalive_interval, self._check_keepalive)

    def _stop_keepalives(self) -> None:
        if self._keepalive:
            self._keepalive.cancel()
            self._keepalive = None

    def _check_keepalive(self) -> None:
        """Send a keep-alive to a stream that has been silent for the interval, and plan the next check."""
        loop = asyncio.get_running_loop()
        due = self._written_at + self._keepalive_interval
        if self._is_writing:
            self._start_keepalives()
        elif loop.time() < due:
            self._keepalive = loop.call_at(due, self._check_keepalive)
        else:
            self._keepalive = loop.create_task(self._send_keepalive())

    async def _send_keepalive(self) -> None:
        await self.write(self.format.keepalive)
        self._start_keepalives()


def _check_size(size: int, max_bytes: int = limits.BODY_BYTES) -> None:
    if size > max_bytes:
        raise BodyTooLarge(f"the body has {size} bytes; at most {max_bytes} are read")
