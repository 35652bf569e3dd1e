"""Frames on their way out of this process: sending never waits, and what cannot be written is bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.message import Message

Out = TypeVar("Out", bound=Message)
BUNDLE_INTERVAL_S = (
    0.001  # s, between messages where many frames come: each costs both ends ten times what one more frame does
)
MAX_BUNDLE_FRAMES = 64  # in one message; more would keep the peer's loop busy for too long
MAX_BUNDLE_BYTES = 262_144  # of one message; a frame beyond goes alone, as what a peer takes at once is bounded


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

    async def write_all(self, write: Callable[[Out], Awaitable[object]], *, can_bundle: Callable[[], bool]) -> None:
        """Write frames as they come, until cancelled or until `write` fails.

        The first goes alone; of the others, those that are ready together, or come within `GAP` of a message, go as one
        where `can_bundle`.
        """
        loop, due = asyncio.get_running_loop(), 0.0
        await self.ready.wait()
        await write(self.frames.popleft())
        while True:
            await self.ready.wait()
            if self.frames and can_bundle():
                early = due - loop.time()
                if early > 0 and len(self.frames) < MAX_BUNDLE_FRAMES:
                    await asyncio.sleep(early)
                due = loop.time() + BUNDLE_INTERVAL_S
                await write(self._bundle())
            elif self.frames:
                await write(self.frames.popleft())
            if not self.frames:
                self.ready.clear()
                self.written.set()

    def _bundle(self) -> Out:
        """Return a message that carries frames, which themselves may be under way to others as well."""
        taken = [self.frames.popleft()]
        size = taken[0].ByteSize()
        while (
            self.frames
            and len(taken) < MAX_BUNDLE_FRAMES
            and (size := size + self.frames[0].ByteSize()) <= MAX_BUNDLE_BYTES
        ):
            taken.append(self.frames.popleft())
        return type(taken[0])(more=taken) if len(taken) > 1 else taken[0]
