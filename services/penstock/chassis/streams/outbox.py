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
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # a frame is due
    written: asyncio.Event = field(default_factory=asyncio.Event)
    _due_timer: asyncio.TimerHandle | None = None  # only while all waiting frames may be delayed

    def put(self, frame: Out, max_delay_s: float = 0.0) -> bool:
        """Add a frame. With `max_delay_s` it travels with the next frame that is due, or after that time."""
        if len(self.frames) >= self.capacity:
            return False
        self.frames.append(frame)
        self.written.clear()
        if not max_delay_s:
            self.expedite()
        elif not self.ready.is_set():
            self._expedite_after(max_delay_s)
        return True

    def unwritten_bytes(self) -> int:
        """Return the size of all waiting frames. Takes a time in proportion to their number."""
        return sum(each.ByteSize() for each in self.frames)

    def expedite(self) -> None:
        """Make all waiting frames due."""
        self._cancel_timer()
        if self.frames:
            self.ready.set()

    def _expedite_after(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        due_at = loop.time() + delay_s
        if self._due_timer is None or due_at < self._due_timer.when():
            self._cancel_timer()
            self._due_timer = loop.call_at(due_at, self.expedite)

    def _cancel_timer(self) -> None:
        if self._due_timer:
            self._due_timer.cancel()
            self._due_timer = None

    async def write_all(self, write: Callable[[Out], Awaitable[object]], *, can_bundle: Callable[[], bool]) -> None:
        """Write frames in order until cancelled or until `write` fails.

        The first frame is a message of its own. Later frames are bundled if `can_bundle` holds and they are ready
        together or within `BUNDLE_INTERVAL_S` of the last message.
        """
        loop, next_bundle_at = asyncio.get_running_loop(), 0.0
        try:
            await self.ready.wait()
            await self._write_one(self.frames.popleft(), write)
            while True:
                await self.ready.wait()
                if not can_bundle():
                    await self._write_one(self.frames.popleft(), write)
                    continue
                delay = next_bundle_at - loop.time()
                if delay > 0 and len(self.frames) < MAX_BUNDLE_FRAMES:
                    await asyncio.sleep(delay)
                next_bundle_at = loop.time() + BUNDLE_INTERVAL_S
                await self._write_one(self._bundle(), write)
        finally:
            self._cancel_timer()

    async def _write_one(self, message: Out, write: Callable[[Out], Awaitable[object]]) -> None:
        """Write a message that was taken from `frames`. A frame that is put meanwhile may be delayed again."""
        if not self.frames:
            self.ready.clear()
        await write(message)
        if not self.frames:
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
