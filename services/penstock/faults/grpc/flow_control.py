"""HTTP/2 flow control of one call, and the inbox of messages at each side."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.faults.world.event_loop import ProcessLoop


@dataclass(eq=False)
class FlowControlWindow:
    """The window of a response stream. The client acknowledges read bytes in halves of the window, as transports do."""

    size_bytes: int
    loop: ProcessLoop  # the server's
    full_since: float | None = None  # s; None: the window is not full
    _unread_bytes: int = 0  # sent and not acknowledged
    _unacknowledged_bytes: int = 0  # read by the client and not acknowledged
    _room_waiter: asyncio.Future[None] | None = None

    async def reserve(self, size: int) -> None:
        """Count `size` bytes as sent; return when the window is not full."""
        self._unread_bytes += size
        while self._unread_bytes > self.size_bytes:
            self.full_since = self.loop.time() if self.full_since is None else self.full_since
            self._room_waiter = self.loop.create_future()
            await self._room_waiter
        self.full_since = None

    def on_read(self, size: int) -> int:
        """Record that the client has read `size` bytes; return the bytes to acknowledge now."""
        self._unacknowledged_bytes += size
        if 2 * self._unacknowledged_bytes < self.size_bytes:
            return 0
        acknowledged, self._unacknowledged_bytes = self._unacknowledged_bytes, 0
        return acknowledged

    def on_window_update(self, size: int) -> None:
        """The server receives an acknowledgement of `size` bytes."""
        self._unread_bytes -= size
        if self._room_waiter and not self._room_waiter.done():
            self._room_waiter.set_result(None)


@dataclass(eq=False)
class MessageInbox:
    """Messages in the order of their arrival, for one reader."""

    loop: ProcessLoop
    on_taken: Callable[[int], None] = lambda _: None  # called with the size of each message that was read
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
        """Return the next message; None after the end of the stream."""
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
