"""Ticks of all streams of an event loop: few timers, because each wakes the process.

Other periodic work of a process is done in a tick, too (`delay_to_tick`), as a wake-up costs more than such work.
The ticks of processes on one host coincide, as they are multiples of the interval on the host's clock: a process then
receives the heartbeats of its peers together.
"""

import asyncio
import math
from typing import Protocol
from weakref import WeakKeyDictionary

TICK_S = 0.38  # a heartbeat is due in a tick in which no other frame was sent
MAX_GROUP_STREAMS = 32  # that tick in one callback, in about 1 ms
EARLY_SHARE = 0.05  # of the interval; timers fire earlier by less
GROUP_OFFSET = 0.618  # of the interval, between two groups: any number of them is spread evenly


def delay_to_tick(max_delay_s: float) -> float:
    """Return the longest delay up to `max_delay_s` that ends in a tick; `max_delay_s` if it is below `TICK_S`."""
    if max_delay_s < TICK_S:
        return max_delay_s
    now = asyncio.get_running_loop().time()
    return math.floor((now + max_delay_s) / TICK_S) * TICK_S - now


class Ticking(Protocol):
    def on_tick(self) -> None: ...


class _TickGroup:
    """Streams that tick together, while there is any."""

    def __init__(self, offset: float) -> None:
        self.streams: dict[Ticking, None] = {}
        self._offset = offset  # s
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: Ticking) -> None:
        self.streams[stream] = None
        if self._timer is None:
            self._schedule()

    def remove(self, stream: Ticking) -> None:
        del self.streams[stream]
        if self._timer and not self.streams:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        # A timer may fire some milliseconds early; the tick that it is for counts as passed then.
        passed = math.floor((loop.time() - self._offset) / TICK_S + EARLY_SHARE)
        self._timer = loop.call_at((passed + 1) * TICK_S + self._offset, self._tick)

    def _tick(self) -> None:
        self._schedule()
        for stream in list(self.streams):
            stream.on_tick()


_groups: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_TickGroup]] = WeakKeyDictionary()


class Ticks:
    """The ticks of one stream, from `start` until `stop`."""

    def __init__(self, stream: Ticking) -> None:
        self._stream = stream
        self._group: _TickGroup | None = None

    def start(self) -> None:
        groups = _groups.setdefault(asyncio.get_running_loop(), [])
        self._group = next((each for each in groups if len(each.streams) < MAX_GROUP_STREAMS), None)
        if self._group is None:
            self._group = _TickGroup(len(groups) * GROUP_OFFSET % 1.0 * TICK_S)
            groups.append(self._group)
        self._group.add(self._stream)

    def stop(self) -> None:
        if self._group:
            self._group.remove(self._stream)
            self._group = None
