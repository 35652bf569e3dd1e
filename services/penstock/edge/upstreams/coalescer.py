"""Frame coalescer: frames that may wait are sent together, so that many cancels at once cost few messages."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Frame = TypeVar("Frame")

COALESCE_WINDOW_S = 0.1  # longer than a burst of cancels lasts
MAX_IMMEDIATE_FRAMES = 8  # frames per window that are sent without delay


class FrameCoalescer(Generic[Frame]):
    """Sends the first `MAX_IMMEDIATE_FRAMES` of a window at once, and the others together at the end of the window.

    Frames that are put here keep their order. Before a frame that must not overtake them, the caller calls `flush`.
    """

    def __init__(self, send: Callable[[Frame], object], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._held: list[Frame] = []
        self._immediate_frames = 0  # in the present window
        self._window_timer: asyncio.TimerHandle | None = None

    def put(self, frame: Frame) -> None:
        if self._window_timer is None:
            self._immediate_frames = 0
            self._window_timer = self._loop.call_later(COALESCE_WINDOW_S, self._on_window_end)
        if self._immediate_frames < MAX_IMMEDIATE_FRAMES:
            self._immediate_frames += 1
            self._send(frame)
        else:
            self._held.append(frame)

    def flush(self) -> None:
        """Send the frames that are held back."""
        held, self._held = self._held, []
        for frame in held:
            self._send(frame)

    def discard(self) -> None:
        """Drop the frames that are held back, because they are sent otherwise or their stream is lost."""
        self._held.clear()

    def close(self) -> None:
        self.discard()
        if self._window_timer:
            self._window_timer.cancel()
            self._window_timer = None

    def _on_window_end(self) -> None:
        self._window_timer = self._loop.call_later(COALESCE_WINDOW_S, self._on_window_end) if self._held else None
        self.flush()
