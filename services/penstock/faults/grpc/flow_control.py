"""How much of an answer may wait for its reader: HTTP/2's flow control of one call, as both of its sides know it."""

import asyncio
from dataclasses import dataclass

from penstock.faults.world.event_loop import ProcessLoop


@dataclass(eq=False)
class Window:
    """The server counts what it has sent, the client what was read; the latter is told in halves, as transports do."""

    size: int  # bytes
    loop: ProcessLoop  # the server's
    full_since: float | None = None  # s; None: there is room
    _unread: int = 0  # bytes, as the server knows
    _untold: int = 0  # bytes that the client has read and not told
    _room: asyncio.Future[None] | None = None

    async def sent(self, count: int) -> None:
        """Wait for room after `count` bytes more."""
        self._unread += count
        while self._unread > self.size:
            self.full_since = self.loop.time() if self.full_since is None else self.full_since
            self._room = self.loop.create_future()
            await self._room
        self.full_since = None

    def read(self, count: int) -> int:
        """Note that the client has read; returns how many bytes to tell the server of now."""
        self._untold += count
        if 2 * self._untold < self.size:
            return 0
        told, self._untold = self._untold, 0
        return told

    def grow(self, count: int) -> None:
        """The server hears what was read."""
        self._unread -= count
        if self._room and not self._room.done():
            self._room.set_result(None)
