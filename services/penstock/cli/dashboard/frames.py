"""The present frame of a mesh for any number of viewers."""

import asyncio
import math
import time
from collections.abc import Sequence

import orjson

from penstock.cli.top.frame import frame_of
from penstock.cli.top.poll import ProcessPoller, ProcessSample


class FrameSource:
    """Polls the mesh when a viewer asks, at most once per interval. Without viewers it polls nothing."""

    def __init__(self, poller: ProcessPoller, first: Sequence[ProcessSample], interval_s: float) -> None:
        self._poller = poller
        self._samples = first
        self._interval_s = interval_s
        self._encoded = b""
        self._polled_at = -math.inf
        self._lock = asyncio.Lock()

    async def latest(self) -> bytes:
        """Return the frame as JSON, with its time in Unix s and the interval of polls in s."""
        async with self._lock:
            if time.monotonic() - self._polled_at >= self._interval_s:
                samples = await self._poller.poll()
                self._encoded = _encode(samples, self._samples, self._interval_s)
                self._samples, self._polled_at = samples, time.monotonic()
            return self._encoded


def _encode(samples: Sequence[ProcessSample], before: Sequence[ProcessSample], interval_s: float) -> bytes:
    return orjson.dumps({"time": time.time(), "interval_s": interval_s, **frame_of(samples, before)})
