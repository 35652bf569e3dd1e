"""The HTTP listener beside the gRPC one, on the same loop: from bound port to drained."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import structlog
import uvicorn

from penstock.chassis.lifecycle import background, current_stop
from penstock.chassis.server.server import CLEANUP_GRACE_S, advertised_address
from penstock.edge.api.http.app import OpenAIApp

log = structlog.get_logger()

KEEP_ALIVE_TIMEOUT_S = (
    3_700  # s; longer than clients and proxies keep idle connections, so that it is they who close them
)
TCP_USER_TIMEOUT_MS = (
    30_000  # ms that a client may leave what we wrote unacknowledged; then its connection counts as dead
)
LISTEN_BACKLOG = 2_048  # connections not accepted yet


@asynccontextmanager
async def serving_http(listen: str, app: OpenAIApp, drain_grace: float) -> AsyncIterator[str]:
    """Serve `front` at host:port and give the address; nothing, where `listen` is empty.

    The drain begins when the process is asked to stop, or else when the block is left, which waits for it.
    Raises OSError when `listen` cannot be bound.
    """
    if not listen:
        yield ""
        return
    listener = _Listener(listen, app, drain_grace)
    async with background(listener.serve(), listener.drain_at_stop()):
        log.info("http_listening", address=listener.address)
        try:
            yield listener.address
        finally:
            await listener.drain()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's, not this server's."""
        yield


class _Listener:
    """One bound port and the server on it."""

    def __init__(self, listen: str, app: OpenAIApp, drain_grace: float) -> None:
        self._app = app
        self._drain_grace = drain_grace
        self._is_closed = asyncio.Event()
        self._socket = _bind(listen)
        self.address = advertised_address(listen, self._socket.getsockname()[1], "")
        self._server = _Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # below that it tells of every stranger that speaks no HTTP
                access_log=False,
                server_header=False,
                proxy_headers=False,  # who called is for the edge to judge, by connection and headers together
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
        """Take nothing new, close idle connections, let answers end within the grace, then end the rest."""
        if self._is_closed.is_set():
            return
        self._server.should_exit = True
        async with background(self._abort_after_grace()):
            await self._is_closed.wait()

    async def _abort_after_grace(self) -> None:
        stop = current_stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_grace if stop.grace is None else stop.grace):
                await stop.forced.wait()
        log.warning("http_requests_aborted", address=self.address, cut=self._app.abort())
        await asyncio.sleep(CLEANUP_GRACE_S)
        self._server.force_exit = True


def _bind(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, int(port)), family=family, backlog=LISTEN_BACKLOG)
    bound.setblocking(False)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    return bound
