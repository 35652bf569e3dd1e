"""Frames on their way out of this process: sending never waits, and what cannot be written is bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.message import Message

Out = TypeVar("Out", bound=Message)


@dataclass
class Outbox(Generic[Out]):
    """Frames waiting to be written, in order. Full: `put` says no, and the stream is to be closed."""

    capacity: int
    frames: deque[Out] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    written: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, frame: Out) -> bool:
        if len(self.frames) >= self.capacity:
            return False
        self.frames.append(frame)
        self.ready.set()
        self.written.clear()
        return True

    async def write_all(self, write: Callable[[Out], Awaitable[object]]) -> None:
        """Write frames as they come, until cancelled or until `write` fails."""
        while True:
            await self.ready.wait()
            while self.frames:
                await write(self.frames.popleft())
            self.ready.clear()
            self.written.set()
