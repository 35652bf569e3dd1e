"""HTTP server: the listener of the OpenAI API on the event loop of the gRPC server, from bind to drain."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import structlog
import uvicorn

from penstock.chassis.lifecycle import background, current_stop
from penstock.chassis.security.process import LOCAL, ProcessSecurity
from penstock.chassis.server.server import CLEANUP_GRACE_S, advertised_address
from penstock.chassis.server.sockets import LISTEN_BACKLOG, bind_socket
from penstock.chassis.streams.ticks import delay_to_tick
from penstock.edge.api.http.app import OpenAIApp
from penstock.edge.api.http.connections import ConnectionLimits
from penstock.edge.api.http.protocol import HttpDoor
from penstock.edge.api.http.proxy_door import protocol_options

log = structlog.get_logger()

# Longer than clients and proxies keep idle connections, so that the server does not close a connection in use.
KEEP_ALIVE_TIMEOUT_S = 3_700
DATE_INTERVAL_S = 1.0  # between two dates in the header of responses
ACCEPT_GRACE_S = 0.1  # after a drain begins, for connections that the kernel has accepted: they are closed, too


@asynccontextmanager
async def serving_http(
    listen: str,
    app: OpenAIApp,
    drain_grace: float,
    door: HttpDoor | None = None,
    security: ProcessSecurity = LOCAL,
    *,
    is_development: bool = True,
    reuses_port: bool = False,
) -> AsyncIterator[str]:
    """Serve `app` at host:port within the limits of `door`, and yield the address. An empty `listen` serves nothing.

    With certificates, only proxies are served; a door on loopback serves everyone there, in plaintext. The drain
    begins at a stop request or at the end of the block, which waits for it. Raises OSError if `listen` cannot be bound,
    ConfigError if it would serve plaintext off loopback.
    """
    if not listen:
        yield ""
        return
    door = door or HttpDoor(ConnectionLimits())
    if not security.is_mutual(listen, is_development_door=is_development):
        security.check_plaintext(listen)
        security = LOCAL
    bound = bind_socket(listen, reuses_port=reuses_port)
    listener = _Listener(bound, listen, app, drain_grace, protocol_options(security, door))
    async with background(listener.serve(), listener.drain_at_stop(), door.close_overdue()):
        log.info("http_listening", address=listener.address)
        try:
            yield listener.address
        finally:
            await listener.drain()


class _Server(uvicorn.Server):
    """uvicorn's server, which wakes the process once a second instead of ten times."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._exit_requested = asyncio.Event()

    def request_exit(self) -> None:
        self.should_exit = True
        self._exit_requested.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # which renews the date of responses
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_to_tick(DATE_INTERVAL_S)):
                    await self._exit_requested.wait()
                    await asyncio.sleep(ACCEPT_GRACE_S)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


class _Listener:
    """One bound port and the server on it."""

    def __init__(
        self, bound: socket.socket, listen: str, app: OpenAIApp, drain_grace: float, protocol: Mapping[str, Any]
    ) -> None:
        self._app = app
        self._drain_grace = drain_grace
        self._is_closed = asyncio.Event()
        self._socket = bound
        self.address = advertised_address(listen, self._socket.getsockname()[1], "")
        self._server = _Server(
            uvicorn.Config(
                app,
                **protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # lower levels log every client that does not speak HTTP
                access_log=False,
                server_header=False,
                proxy_headers=False,  # the edge derives the caller from connection and headers itself
                timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
                backlog=LISTEN_BACKLOG,
            )
        )

    async def serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._is_closed.set()
            log.info("http_drained", address=self.address)

    async def drain_at_stop(self) -> None:
        await current_stop().requested.wait()
        await self.drain()

    async def drain(self) -> None:
        """Stop listening, close idle connections, let responses end within the grace, then abort the rest."""
        if self._is_closed.is_set():
            return
        self._server.request_exit()
        async with background(self._abort_after_grace()):
            await self._is_closed.wait()

    async def _abort_after_grace(self) -> None:
        stop = current_stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_grace if stop.grace is None else stop.grace):
                await stop.forced.wait()
        log.warning("http_requests_aborted", address=self.address, aborted=self._app.abort())
        await asyncio.sleep(CLEANUP_GRACE_S)
        self._server.force_exit = True
