"""Measures the callbacks of an event loop by CPU time, because a busy machine delays every callback.

A wall clock would count the time in which other processes of a shared machine run. The CPU time of the thread includes
garbage collection, which runs in the callback that sets it off.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MAX_CALLBACK_CPU_S = 0.02  # s; longer callbacks would delay the first tokens of other requests


@dataclass
class LoopWatchdog:
    """CPU time of each callback of the loop, and how much a figure has changed in it."""

    sample: Callable[[], int]  # a figure that callbacks change, such as a number of tickets
    longest_s: float = 0.0  # CPU time of the longest callback
    longest: str = ""  # the callback that took it
    callbacks: int = 0
    changes: list[int] = field(default_factory=list)  # of the figure, by the callbacks that changed it

    def __repr__(self) -> str:
        return f"<LoopWatchdog {self.callbacks} callbacks, longest {1e3 * self.longest_s:.1f} ms: {self.longest}>"

    @property
    def was_never_held(self) -> bool:
        """Whether no callback took longer than `MAX_CALLBACK_CPU_S`, and there were any."""
        return self.callbacks > 0 and self.longest_s <= MAX_CALLBACK_CPU_S

    def run(self, handle: asyncio.Handle, run: Callable[[asyncio.Handle], None]) -> None:
        figure, begun_at = self.sample(), time.thread_time()
        run(handle)
        took_s = time.thread_time() - begun_at
        self.callbacks += 1
        if took_s > self.longest_s:
            owner = getattr(handle._callback, "__self__", None)  # the task whose step the callback is
            self.longest_s, self.longest = took_s, repr(owner or handle)
        if changed := self.sample() - figure:
            self.changes.append(changed)


@contextmanager
def watched_loop(sample: Callable[[], int] = lambda: 0) -> Iterator[LoopWatchdog]:
    """Watch all callbacks of the event loops of this process."""
    watchdog, run = LoopWatchdog(sample), asyncio.Handle._run
    asyncio.Handle._run = lambda handle: watchdog.run(handle, run)
    try:
        yield watchdog
    finally:
        asyncio.Handle._run = run
