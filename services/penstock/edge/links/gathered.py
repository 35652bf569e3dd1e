"""What need not be said at once, said together: a crowd's leaving costs a few messages, and its way out comes first."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Frame = TypeVar("Frame")

PAUSE = 0.1  # s; longer than the cancels of a crowd take
FEW = 8  # frames that go at once; more within a pause are a crowd


class Gathered(Generic[Frame]):
    """Says the first `FEW` frames at once; those that follow within `PAUSE` wait for its end, and are said together.

    Order is kept among what is put here; whoever says something else that must not overtake it calls `release` first.
    """

    def __init__(self, say: Callable[[Frame], object], loop: asyncio.AbstractEventLoop) -> None:
        self._say = say
        self._loop = loop
        self._held: list[Frame] = []
        self._at_once = 0  # since the pause began
        self._pause: asyncio.TimerHandle | None = None

    def put(self, frame: Frame) -> None:
        if self._pause is None:
            self._at_once, self._pause = 0, self._loop.call_later(PAUSE, self._over)
        if self._at_once < FEW:
            self._at_once += 1
            self._say(frame)
        else:
            self._held.append(frame)

    def release(self) -> None:
        """Say now what is held."""
        held, self._held = self._held, []
        for frame in held:
            self._say(frame)

    def forget(self) -> None:
        """Drop what is held: it was said by other means, or there is nobody to say it to."""
        self._held.clear()

    def close(self) -> None:
        self.forget()
        if self._pause:
            self._pause.cancel()
            self._pause = None

    def _over(self) -> None:
        self._pause = self._loop.call_later(PAUSE, self._over) if self._held else None
        self.release()
