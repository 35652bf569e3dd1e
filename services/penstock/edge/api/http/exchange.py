"""Bodies on their way in, before anything is known of who sends them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from uuid import uuid4

from penstock.chassis.errors import Overloaded, PenstockError
from penstock.edge.api.openai.errors import http_error
from penstock.edge.api.openai.fields import BodyStalled, BodyTooLarge
from penstock.edge.api.openai.streaming import KEEPALIVE
from penstock.edge.request import limits
from penstock.edge.request.caller import credential_of
from penstock.edge.request.validation import is_request_id
from penstock.mesh.v1.admission_pb2 import Credential

RETRY_AFTER_S = 1.0  # s


class PendingBody:
    """One of them, as far as it has come."""

    def __init__(self, budget: "BodyBudget") -> None:
        self.size = 0
        self._budget = budget

    def add(self, size: int) -> None:
        self._budget.check_room(size)
        self._budget.held_bytes += size
        self.size += size


class BodyBudget:
    """Bounds the bytes of all bodies together: the bound on requests counts them only once they are parsed."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<Intake {self.held_bytes}/{self.max_bytes} bytes>"

    @contextmanager
    def body(self) -> Iterator[PendingBody]:
        body = PendingBody(self)
        try:
            yield body
        finally:
            self.held_bytes -= body.size

    def check_room(self, size: int) -> None:
        """Raise Overloaded when there is no room for `size` bytes more."""
        if self.held_bytes + size > self.max_bytes:
            text = f"this edge is reading {self.held_bytes} bytes of requests and takes no more now"
            raise Overloaded(text, reason="EDGE_FULL", retry_after=RETRY_AFTER_S)


FINAL_WRITE_TIMEOUT_S = (
    1.0  # s; what ends a stream may take no longer to write: a client that reads nothing holds up a drain
)

JSON: Mapping[str, str] = {"content-type": "application/json"}
EVENT_STREAM: Mapping[str, str] = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # some proxies hold a response back until it is whole, unless told
}


class ClientDisconnected(Exception):
    """Nobody is there to be answered."""


class Exchange:
    """Reads a body within its cap, writes a whole response or a stream, and notices when the client leaves."""

    def __init__(self, scope: Any, receive: Any, send: Any, *, keepalive_interval: float) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        given = self.header("x-request-id")
        # One that cannot be kept is replaced: the response says which id it was in the end.
        self.request_id = given if given and is_request_id(given) else uuid4().hex
        self.route = ""  # that the path was found to be; empty: none
        self.status = 0  # of the response; 0 until it begins
        self._scope = scope
        self._receive = receive
        self._send = send
        self._keepalive_interval = keepalive_interval  # s, before a stream says that it lives
        self._format_failure: Callable[[PenstockError], bytes] | None = None
        self._is_writing = False
        self._written_at = 0.0  # s, the loop's clock
        self._abort_timeout: asyncio.Timeout | None = None
        self._abort_error: Exception | None = None
        self.on_disconnect: Callable[[], None] = lambda: (
            None
        )  # done first when the client leaves, before all that unwinds

    def __repr__(self) -> str:
        return f"<Exchange {self.request_id} {self.method} {self.path} {self.status}>"

    def header(self, name: str) -> str:
        """Return the first of that name; empty when there is none."""
        return next((value for given, value in self.headers if given == name), "")

    @property
    def credential(self) -> Credential:
        host, port = self._scope.get("client") or ("", 0)
        return credential_of(self.headers, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    async def body(self, budget: BodyBudget) -> bytes:
        """Raises BodyTooLarge, at once where the client says how much it will send; BodyStalled, EDGE_FULL."""
        announced = self.header("content-length")
        _check_size(int(announced) if announced.isdecimal() else 0)
        parts = []
        with budget.body() as body:
            while True:
                message = await self._receive_part()
                body.add(len(message["body"]))
                _check_size(body.size)
                parts.append(message["body"])
                if not message["more_body"]:
                    return b"".join(parts)

    async def _receive_part(self) -> Any:
        try:
            async with asyncio.timeout(limits.BODY_READ_TIMEOUT_S):
                message = await self._receive()
        except TimeoutError:
            raise BodyStalled(f"nothing more of the body came in {limits.BODY_READ_TIMEOUT_S:.0f} s") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message

    # Answering.

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] = JSON) -> None:
        await self._start(status, {**headers, "content-length": str(len(body))})
        await self.end(body)

    async def begin(self, frame: bytes, format_failure: Callable[[PenstockError], bytes]) -> None:
        """Begin a stream; `fail` says how one that has begun ends in an error."""
        self._format_failure = format_failure
        await self._start(200, EVENT_STREAM)
        if frame:
            await self.write(frame)

    async def write(self, frame: bytes) -> None:
        """Waits while the client is behind with reading."""
        self._is_writing = True
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._is_writing = False
        self._written_at = asyncio.get_running_loop().time()

    async def end(self, frame: bytes) -> None:
        self._is_writing = True  # for good: nothing may follow
        await self._send({"type": "http.response.body", "body": frame, "more_body": False})

    async def fail(self, error: PenstockError) -> None:
        """Tell of an error by status, or in the stream when that has begun."""
        if not self.status:
            told = http_error(error)
            await self.respond(told.status, told.body, told.headers)
            return
        if self._format_failure:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINAL_WRITE_TIMEOUT_S):
                    await self.end(self._format_failure(error))

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self._written_at = asyncio.get_running_loop().time()
        named = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        named.append((b"x-request-id", self.request_id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": named})

    # Ending early.

    @asynccontextmanager
    async def abortable(self) -> AsyncIterator[None]:
        """A block that `cut` ends, from wherever it is called."""
        try:
            async with asyncio.timeout(None) as self._abort_timeout:
                yield
        except TimeoutError:
            if self._abort_error is None:
                raise
            raise self._abort_error from None
        finally:
            self._abort_timeout = None

    def abort(self, error: Exception) -> None:
        """Raise `error` where the exchange stands; nothing happens to one that is over."""
        if self._abort_timeout and self._abort_error is None:
            self._abort_error = error
            self._abort_timeout.reschedule(0.0)

    async def watch_disconnect(self) -> None:
        """Cut when the client leaves; say that the stream lives when it is silent for long. To run beside the rest."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._keepalive_interval
        while True:
            try:
                async with asyncio.timeout_at(due):
                    message = await self._receive()
            except TimeoutError:
                due = await self._send_keepalive(loop.time())
                continue
            if message["type"] == "http.disconnect":
                self.on_disconnect()
                self.abort(ClientDisconnected())
                return

    async def _send_keepalive(self, now: float) -> float:
        """Break a silence if there is one; return when to look again."""
        if not self.status or self._is_writing:
            return now + self._keepalive_interval
        if now - self._written_at >= self._keepalive_interval:
            await self.write(KEEPALIVE)
        return self._written_at + self._keepalive_interval


def _check_size(size: int) -> None:
    if size > limits.BODY_BYTES:
        raise BodyTooLarge(f"the body has {size} bytes; at most {limits.BODY_BYTES} are read")
