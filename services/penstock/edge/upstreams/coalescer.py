"""What need not be said at once, said together: a crowd's leaving costs a few messages, and its way out comes first."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Frame = TypeVar("Frame")

COALESCE_WINDOW_S = 0.1  # s; longer than the cancels of a crowd take
MAX_IMMEDIATE_FRAMES = 8  # frames that go at once; more within a pause are a crowd


class FrameCoalescer(Generic[Frame]):
    """Says the first `FEW` frames at once; those that follow within `PAUSE` wait for its end, and are said together.

    Order is kept among what is put here; whoever says something else that must not overtake it calls `release` first.
    """

    def __init__(self, send: Callable[[Frame], object], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._held: list[Frame] = []
        self._immediate_frames = 0  # since the pause began
        self._window_timer: asyncio.TimerHandle | None = None

    def put(self, frame: Frame) -> None:
        if self._window_timer is None:
            self._immediate_frames, self._window_timer = (
                0,
                self._loop.call_later(COALESCE_WINDOW_S, self._on_window_end),
            )
        if self._immediate_frames < MAX_IMMEDIATE_FRAMES:
            self._immediate_frames += 1
            self._send(frame)
        else:
            self._held.append(frame)

    def flush(self) -> None:
        """Say now what is held."""
        held, self._held = self._held, []
        for frame in held:
            self._send(frame)

    def discard(self) -> None:
        """Drop what is held: it was said by other means, or there is nobody to say it to."""
        self._held.clear()

    def close(self) -> None:
        self.discard()
        if self._window_timer:
            self._window_timer.cancel()
            self._window_timer = None

    def _on_window_end(self) -> None:
        self._window_timer = self._loop.call_later(COALESCE_WINDOW_S, self._on_window_end) if self._held else None
        self.flush()
