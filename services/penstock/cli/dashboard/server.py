"""The listener of the page: a loopback port or a unix socket."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from penstock.chassis.config import ConfigError
from penstock.chassis.lifecycle import background
from penstock.chassis.operators.access import UNIX_PREFIX
from penstock.chassis.operators.unix_socket import path_of, private_files, remove_stale_socket
from penstock.chassis.security.process import is_loopback_address
from penstock.chassis.server.sockets import LISTEN_BACKLOG, bind_socket
from penstock.cli.dashboard.app import DashboardApp

MAX_CONNECTIONS = 64
MAX_HEADER_BYTES = 16 << 10
MAX_PORT = 65_535
KEEP_ALIVE_S = 10
STOP_GRACE_S = 1


class PageServer(uvicorn.Server):
    """uvicorn's server on one socket."""

    def __init__(self, app: DashboardApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_GRACE_S,
            )
        )
        self._has_ended = asyncio.Event()

    async def run_at(self, bound: socket.socket) -> None:
        """Serve at `bound` until `stop`."""
        try:
            await self.serve([bound])
        finally:
            bound.close()
            self._has_ended.set()

    async def stop(self) -> None:
        self.should_exit = True
        await self._has_ended.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


@asynccontextmanager
async def serving_page(listen: str, app: DashboardApp) -> AsyncIterator[str]:
    """Serve `app` during the block; yield the address. Raises ConfigError or OSError as `bind_page`."""
    bound, server = bind_page(listen), PageServer(app)
    is_unix = listen.startswith(UNIX_PREFIX)
    address = listen if is_unix else f"{listen.rpartition(':')[0]}:{bound.getsockname()[1]}"
    async with background(server.run_at(bound)):
        try:
            yield address
        finally:
            await server.stop()
            if is_unix:
                path_of(listen).unlink(missing_ok=True)


def bind_page(listen: str) -> socket.socket:
    """Return the listening socket. Raises ConfigError off loopback, OSError if the address cannot be bound."""
    if listen.startswith(UNIX_PREFIX):
        path = path_of(listen)
        remove_stale_socket(path)
        bound = socket.socket(socket.AF_UNIX)
        with private_files():
            bound.bind(str(path))
        bound.listen(LISTEN_BACKLOG)
        bound.setblocking(False)
        return bound
    port = listen.rpartition(":")[2]
    if not (port.isdigit() and int(port) <= MAX_PORT):
        raise ConfigError(f"{listen} is neither HOST:PORT nor unix:PATH")
    if not is_loopback_address(listen):
        raise ConfigError(
            f"the page is served without TLS, and {listen} is not on loopback; listen on 127.0.0.1 or on unix:PATH, and"
            " forward a local port to it with `kubectl port-forward` or `ssh -L`"
        )
    return bind_socket(listen)
