"""The receiving end of one direction of a call."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.faults.world.event_loop import ProcessLoop


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
