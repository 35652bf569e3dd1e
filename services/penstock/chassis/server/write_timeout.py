"""What a call does about a client that does not read: it waits for a bounded time, and ends."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

from penstock.chassis.errors import Aborted

CLIENT_READ_TIMEOUT_S = 30.0  # s that a client may take nothing in of a response that is due to it
ABORT_TIMEOUT_S = 1.0  # s for such a client to take in how its call ended; the transport keeps it for later


class ClientTooSlow(Aborted):
    """The client does not read, or too slowly; the call is over for this side."""

    default_reason = "CLIENT_TOO_SLOW"


class _WriteWatchdog:
    """Ends a block when a write within it takes too long; one timer for all writes of a call."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
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
            self._limit.reschedule(now)
        else:
            self._timer = self._loop.call_at(min(self._write_began_at, now) + CLIENT_READ_TIMEOUT_S, self._check)


async def write_responses(context: Any, responses: AsyncIterator[Any]) -> None:
    """Write each response as the client takes them in; raises ClientTooSlow when it takes nothing for `UNREAD`."""
    limit = asyncio.timeout(None)
    try:
        async with limit:
            watch = _WriteWatchdog(limit)
            try:
                async for response in responses:
                    watch.begin()
                    await context.write(response)
                    watch.end()
            finally:
                watch.close()
    except TimeoutError:
        if not limit.expired():
            raise  # of the handler itself
        text = (
            f"the client took nothing in for {CLIENT_READ_TIMEOUT_S:g} s; read faster, or resume with the tokens it has"
        )
        raise ClientTooSlow(text) from None
