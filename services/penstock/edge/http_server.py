"""The HTTP listener beside the gRPC one, on the same loop."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import structlog
import uvicorn

log = structlog.get_logger()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's, not this server's."""
        yield


@asynccontextmanager
async def serving_http(listen: str, app: Any, *, drain_grace: float) -> AsyncIterator[str]:
    """Serve `app` until the block is left, then let running answers end within the grace. Gives host:port."""
    host, _, port = listen.rpartition(":")
    config = uvicorn.Config(
        app,
        host=host.strip("[]"),
        port=int(port),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who called is for the edge to judge, by connection and headers together
        timeout_graceful_shutdown=max(1, round(drain_grace)),
    )
    socket = config.bind_socket()
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[socket]))
        address = f"{host}:{socket.getsockname()[1]}"
        log.info("http_listening", address=address)
        try:
            yield address
        finally:
            server.should_exit = True
