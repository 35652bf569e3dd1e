"""The worker's end of the pipe to its engine, which never blocks the event loop."""

import asyncio
from collections.abc import Callable
from typing import cast

from penstock.worker.engine.host.pipe import MessageDecoder, encode_message


class EnginePipe(asyncio.Protocol):
    """Passes on the messages of one engine process, in order; `closed` is done once its end of the pipe is closed."""

    def __init__(self, on_message: Callable[[object], None]) -> None:
        self._on_message = on_message
        self._decoder = MessageDecoder()
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's type is not a subclass of asyncio's

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, message: object) -> None:
        """Queue a message. The queue is bounded by the worker's leases: one spec and one cancel each."""
        assert self._transport is not None
        self._transport.write(encode_message(message))

    def close(self) -> None:
        if self._transport:
            self._transport.close()
