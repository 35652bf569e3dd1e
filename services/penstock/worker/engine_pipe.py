"""The front's end of the pipe to its engine: whole messages, and never a wait on the event loop.

The engine's end is a `multiprocessing.connection.Connection`, which blocks, as suits a process that steps. Ours cannot:
a Connection waits for the rest of a message, and for room in the pipe while the engine computes. So the same framing
is spoken here over a transport: each message is its length as four bytes, big-endian and signed, then a pickle.
(Beyond 2 GiB a Connection frames otherwise; nothing of ours comes near.)
"""

import asyncio
import pickle
from collections.abc import Callable
from struct import Struct
from typing import cast

_LENGTH = Struct("!i")


def encoded(message: object) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class EnginePipe(asyncio.Protocol):
    """Messages of one engine process, in order, until its end of the pipe closes; then `lost` is done."""

    def __init__(self, on_message: Callable[[object], None]) -> None:
        self._on_message = on_message
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own type is none of asyncio's

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + int(_LENGTH.unpack_from(self._buffer)[0])
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            self._on_message(pickle.loads(body))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def send(self, message: object) -> None:
        """Queue a message. What waits here is bounded by the leases a worker has: a spec each, and its cancel."""
        assert self._transport is not None
        self._transport.write(encoded(message))

    def close(self) -> None:
        if self._transport:
            self._transport.close()
