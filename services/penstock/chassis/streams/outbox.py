"""The outbox of a stream: frames that wait to be written. Sending never waits, and the number of frames is bounded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.message import Message

Out = TypeVar("Out", bound=Message)
# s between messages under load. A message costs both ends ten times as much as one more frame in it.
BUNDLE_INTERVAL_S = 0.001
MAX_BUNDLE_FRAMES = 64  # frames of one message; more would keep the peer's loop busy for too long
MAX_BUNDLE_BYTES = 262_144  # bytes of one message; a larger frame is sent alone, as peers bound the size of a message


@dataclass
class Outbox(Generic[Out]):
    """Frames that wait to be written, in order. `put` returns False if it is full; the stream must then be closed."""

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
        """Write frames in order until cancelled or until `write` fails.

        The first frame is a message of its own. Later frames are bundled if `can_bundle` holds and they are ready
        together or within `BUNDLE_INTERVAL_S` of the last message.
        """
        loop, next_bundle_at = asyncio.get_running_loop(), 0.0
        await self.ready.wait()
        await write(self.frames.popleft())
        while True:
            await self.ready.wait()
            if self.frames and can_bundle():
                delay = next_bundle_at - loop.time()
                if delay > 0 and len(self.frames) < MAX_BUNDLE_FRAMES:
                    await asyncio.sleep(delay)
                next_bundle_at = loop.time() + BUNDLE_INTERVAL_S
                await write(self._bundle())
            elif self.frames:
                await write(self.frames.popleft())
            if not self.frames:
                self.ready.clear()
                self.written.set()

    def _bundle(self) -> Out:
        """Return a new message with the next frames. The frames are not changed, as other outboxes may hold them."""
        taken = [self.frames.popleft()]
        size = taken[0].ByteSize()
        while (
            self.frames
            and len(taken) < MAX_BUNDLE_FRAMES
            and (size := size + self.frames[0].ByteSize()) <= MAX_BUNDLE_BYTES
        ):
            taken.append(self.frames.popleft())
        return type(taken[0])(more=taken) if len(taken) > 1 else taken[0]
