"""Server of gRPC over HTTP/2. It offers what the chassis uses of `grpc.aio.Server`, and runs the same handlers."""

import asyncio
import inspect
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import structlog

from penstock.chassis.errors import PenstockError
from penstock.chassis.http2.context import CallContext
from penstock.chassis.http2.limits import Http2Limits
from penstock.chassis.http2.metadata import Metadata, decoded, decoded_timeout
from penstock.chassis.http2.server_connection import ServerConnection
from penstock.chassis.http2.stream import Stream, do_nothing
from penstock.chassis.server.sockets import LISTEN_BACKLOG, bind_socket

log = structlog.get_logger()

UNIX_PREFIX = "unix:"
HANDSHAKE_TIMEOUT_S = 5.0
TLS_CLOSE_TIMEOUT_S = 1.0
SWEEP_INTERVAL_S = 4.0  # a client that is silent for an interval is asked once, and closed after another
MAX_READ_TURNS = 100  # of the loop, in which a handler may read what arrived before its client was lost


class HandlerCallDetails(NamedTuple):
    """The fields of `grpc.HandlerCallDetails`, for interceptors."""

    method: str
    invocation_metadata: Metadata


class Http2Server:
    """Listens on ports and runs the handler of each call as a task. `stop` may be called again with less grace."""

    def __init__(self, interceptors: Sequence[Any], limits: Http2Limits, *, reuses_port: bool = False) -> None:
        self._interceptors = tuple(interceptors)
        self._handlers: dict[str, Any] = {}  # by /service/method
        self._generic_handlers: list[Any] = []  # asked for a method that is not among them
        self._sockets: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._listeners: list[asyncio.Server] = []
        self._running: set[asyncio.Task[None]] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._sweep: asyncio.TimerHandle | None = None
        self.limits: Final = limits
        self._reuses_port = reuses_port  # with other servers of this host
        self.connections: set[ServerConnection] = set()
        self._open: set[ServerConnection] = set()  # also those that are being closed
        self._has_closed = asyncio.Event()
        self.is_stopping = False

    def __repr__(self) -> str:
        return f"<Http2Server {len(self.connections)} connections, {len(self._running)} calls>"

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic_handlers += handlers

    def add_registered_method_handlers(self, service_name: str, methods: dict[str, Any]) -> None:
        self._handlers.update({f"/{service_name}/{name}": method for name, method in methods.items()})

    def add_port(self, listen: str, context: ssl.SSLContext | None = None) -> int:
        """Bind host:port or unix:path, and return the port. Raises RuntimeError if it cannot be bound."""
        try:
            if _is_unix(listen):
                bound = _bind_unix(listen.removeprefix(UNIX_PREFIX))
            else:
                bound = bind_socket(listen, reuses_port=self._reuses_port)
        except OSError as error:
            raise RuntimeError(f"cannot bind {listen}: {error}") from error
        self._sockets.append((bound, context))
        return 0 if _is_unix(listen) else int(bound.getsockname()[1])

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for bound, context in self._sockets:
            create: Any = loop.create_unix_server if bound.family == socket.AF_UNIX else loop.create_server
            listener = await create(
                lambda: ServerConnection(self),
                sock=bound,
                ssl=context,
                backlog=LISTEN_BACKLOG,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if context else None,
                ssl_shutdown_timeout=TLS_CLOSE_TIMEOUT_S if context else None,
            )
            self._listeners.append(listener)

    async def stop(self, grace: float | None) -> None:
        """Accept no calls, let those that run end for `grace` seconds, then cancel them and close all connections."""
        self.is_stopping = True
        for listener in self._listeners:
            listener.close()
        for bound, _ in self._sockets:
            bound.close()
        for connection in list(self.connections):
            connection.send_go_away()
        if grace:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._is_idle.wait()
        for task in list(self._running):
            task.cancel()
        await self._is_idle.wait()
        for connection in list(self.connections):
            connection.close("the server stops")
        if self._sweep:
            self._sweep.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(TLS_CLOSE_TIMEOUT_S):
                while self._open:
                    self._has_closed.clear()
                    await self._has_closed.wait()

    # Of connections.

    def on_connected(self, connection: ServerConnection) -> bool:
        """Return False if there are too many connections."""
        if len(self.connections) >= self.limits.max_connections or self.is_stopping:
            return False
        self.connections.add(connection)
        self._open.add(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep_silent)
        return True

    def on_disconnected(self, connection: ServerConnection) -> None:
        """The socket of a connection is closed."""
        self._open.discard(connection)
        self._has_closed.set()

    def _sweep_silent(self) -> None:
        """Close connections of clients that answer no more, and those that have no call."""
        for connection in list(self.connections):
            connection.sweep()
        again = bool(self.connections) and not self.is_stopping
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep_silent) if again else None

    def on_request(self, connection: ServerConnection, stream: Stream) -> None:
        self._is_idle.clear()
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._serve(connection, stream))
        self._running.add(task)
        connection.running_calls += 1
        stream.on_broken = lambda: loop.call_soon(_cancel_once_read, task, stream, MAX_READ_TURNS)
        task.add_done_callback(partial(self._on_served, connection, stream))

    def _on_served(self, connection: ServerConnection, stream: Stream, task: asyncio.Task[None]) -> None:
        connection.running_calls -= 1
        stream.on_broken = do_nothing  # the former one refers to the stream, so that only a collection would free both
        self._running.discard(task)
        if not self._running:
            self._is_idle.set()
        if not task.cancelled() and (error := task.exception()):
            log.error("call_crashed", exc_info=error)

    async def _serve(self, connection: ServerConnection, stream: Stream) -> None:
        headers = dict(stream.headers)
        timeout = decoded_timeout(headers[b"grpc-timeout"]) if b"grpc-timeout" in headers else None
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        context = CallContext(connection, stream, decoded(stream.headers), deadline)
        try:
            async with asyncio.timeout_at(deadline):
                await self._run(headers.get(b":path", b"").decode("latin-1"), headers, context)
            context.end()
        except TimeoutError:
            context.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline of the call has passed")
        except grpc.aio.AbortError:
            context.end()
        except PenstockError as error:  # of a message that no interceptor has seen
            context.end(error.code, error.message, tuple(error.trailing_metadata()))
        except asyncio.CancelledError:
            context.end(grpc.StatusCode.UNAVAILABLE, "the server cancelled the call")
        except Exception:
            log.exception("handler_crashed")
            context.end(grpc.StatusCode.UNKNOWN, "internal error")

    async def _run(self, method: str, headers: dict[bytes, bytes], context: CallContext) -> None:
        if self.is_stopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")
        if headers.get(b":method") != b"POST" or not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "a call is a POST with content-type application/grpc")
        handler = await self._find_handler(HandlerCallDetails(method, context.invocation_metadata()))
        if handler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not served here")
        context.use(handler)
        request = context.messages() if handler.request_streaming else await _only_message(context)
        kind = f"{_kind(handler.request_streaming)}_{_kind(handler.response_streaming)}"
        answer = getattr(handler, kind)(request, context)
        if inspect.isasyncgen(answer):
            async for message in answer:
                await context.write(message)
        elif (response := await answer) is not None and not handler.response_streaming:
            await context.write(response)

    async def _find_handler(self, details: HandlerCallDetails) -> Any:
        """Return the handler of a method within all interceptors; the first interceptor is the outermost."""

        async def within(interceptors: Sequence[Any]) -> Any:
            if not interceptors:
                return self._handlers.get(details.method) or self._generic_handler(details)
            return await interceptors[0].intercept_service(lambda _: within(interceptors[1:]), details)

        return await within(self._interceptors)

    def _generic_handler(self, details: HandlerCallDetails) -> Any:
        return next((found for each in self._generic_handlers if (found := each.service(details))), None)


def _cancel_once_read(task: asyncio.Task[None], stream: Stream, turns: int) -> None:
    if stream.has_unread and turns:
        asyncio.get_running_loop().call_soon(_cancel_once_read, task, stream, turns - 1)
    else:
        task.cancel()


async def _only_message(context: CallContext) -> Any:
    message = await context.read()
    if message is grpc.aio.EOF:
        await context.abort(grpc.StatusCode.INTERNAL, "the client sent no message")
    return message


def _kind(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


def _is_unix(listen: str) -> bool:
    return listen.startswith(UNIX_PREFIX)


def _bind_unix(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.setblocking(False)
    bound.bind(path)
    Path(path).chmod(0o600)
    return bound
