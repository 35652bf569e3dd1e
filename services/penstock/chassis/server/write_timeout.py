"""The time limit on writes to a client that does not read."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc

from penstock.chassis.errors import Aborted

CLIENT_READ_TIMEOUT_S = 30.0  # longest wait for a client to read from its call while a response is being written
ABORT_TIMEOUT_S = 1.0  # longest wait for such a client to read the status; the transport keeps it for a later read


class ClientTooSlow(Aborted):
    """The client reads nothing or too slowly; the server has ended the call."""

    default_reason = "CLIENT_TOO_SLOW"


class _WriteWatchdog:
    """Expires a timeout when a write takes too long; one timer serves all writes of a call."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(CLIENT_READ_TIMEOUT_S, self._check)
        self._write_began_at = math.inf

    def begin(self) -> None:
        self._write_began_at = self._loop.time()

    def end(self) -> None:
        self._write_began_at = math.inf

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        if now >= self._write_began_at + CLIENT_READ_TIMEOUT_S:
            self._timeout.reschedule(now)
        else:
            self._timer = self._loop.call_at(min(self._write_began_at, now) + CLIENT_READ_TIMEOUT_S, self._check)


async def write_responses(context: Any, responses: AsyncIterator[Any]) -> None:
    """Write each response. Raises ClientTooSlow if the client reads nothing for `CLIENT_READ_TIMEOUT_S`.

    Raises CancelledError if the client's connection ends during a write.
    """
    timeout = asyncio.timeout(None)
    try:
        async with timeout:
            watch = _WriteWatchdog(timeout)
            try:
                async for response in responses:
                    watch.begin()
                    await context.write(response)
                    watch.end()
            finally:
                watch.close()
    except TimeoutError:
        if not timeout.expired():
            raise  # a timeout of the handler itself
        text = f"the client read nothing for {CLIENT_READ_TIMEOUT_S:g} s; read faster, or resume with the tokens it has"
        raise ClientTooSlow(text) from None
    except grpc.aio.InternalError:  # C-core has not sent the response; gRPC would log a traceback
        raise asyncio.CancelledError from None
