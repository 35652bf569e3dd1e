"""Measures the callbacks of an event loop by CPU time, because a busy machine delays every callback."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class LoopWatchdog:
    """CPU time of each callback of the loop, and how much a figure has changed in it."""

    sample: Callable[[], int]  # a figure that callbacks change, such as a number of tickets
    longest_s: float = 0.0  # CPU time of the longest callback; for reports, not for assertions
    changes: list[int] = field(default_factory=list)  # of the figure, by the callbacks that changed it

    def run(self, handle: asyncio.Handle, run: Callable[[asyncio.Handle], None]) -> None:
        figure, begun_at = self.sample(), time.thread_time()
        run(handle)
        self.longest_s = max(self.longest_s, time.thread_time() - begun_at)
        if changed := self.sample() - figure:
            self.changes.append(changed)


@contextmanager
def watched_loop(sample: Callable[[], int]) -> Iterator[LoopWatchdog]:
    """Watch all callbacks of the event loops of this process."""
    watchdog, run = LoopWatchdog(sample), asyncio.Handle._run
    asyncio.Handle._run = lambda handle: watchdog.run(handle, run)
    try:
        yield watchdog
    finally:
        asyncio.Handle._run = run
