"""How much of an answer may wait for its reader: HTTP/2's flow control of one call, as both of its sides know it."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.faults.world.event_loop import ProcessLoop


@dataclass(eq=False)
class FlowControlWindow:
    """The server counts what it has sent, the client what was read; the latter is told in halves, as transports do."""

    size_bytes: int  # bytes
    loop: ProcessLoop  # the server's
    full_since: float | None = None  # s; None: there is room
    _unread_bytes: int = 0  # bytes, as the server knows
    _unacknowledged_bytes: int = 0  # bytes that the client has read and not told
    _room_waiter: asyncio.Future[None] | None = None

    async def reserve(self, size: int) -> None:
        """Wait for room after `count` bytes more."""
        self._unread_bytes += size
        while self._unread_bytes > self.size_bytes:
            self.full_since = self.loop.time() if self.full_since is None else self.full_since
            self._room_waiter = self.loop.create_future()
            await self._room_waiter
        self.full_since = None

    def on_read(self, size: int) -> int:
        """Note that the client has read; returns how many bytes to tell the server of now."""
        self._unacknowledged_bytes += size
        if 2 * self._unacknowledged_bytes < self.size_bytes:
            return 0
        told, self._unacknowledged_bytes = self._unacknowledged_bytes, 0
        return told

    def on_window_update(self, size: int) -> None:
        """The server hears what was read."""
        self._unread_bytes -= size
        if self._room_waiter and not self._room_waiter.done():
            self._room_waiter.set_result(None)


@dataclass(eq=False)
class MessageInbox:
    """Messages in the order of their coming, for one reader."""

    loop: ProcessLoop
    on_taken: Callable[[int], None] = lambda _: None  # hears how many bytes were taken out
    _messages: deque[bytes] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None
    is_closed: bool = False

    def put(self, message: bytes) -> None:
        if not self.is_closed:
            self._messages.append(message)
            self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    async def receive(self) -> bytes | None:
        """Return the next message; None when none comes any more."""
        while not self._messages:
            if self.is_closed:
                return None
            self._waiter = self.loop.create_future()
            await self._waiter
        message = self._messages.popleft()
        self.on_taken(len(message))
        return message

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)
