"""Measures the callbacks of an event loop by CPU time, because a busy machine delays every callback.

A wall clock would count the time in which other processes of a shared machine run. The CPU time of the thread includes
garbage collection, which runs in the callback that sets it off. The limit is stated for a machine on which a fixed
computation takes `REFERENCE_S`; on a slower one, it grows in proportion.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MAX_CALLBACK_CPU_S = 0.02  # s; longer callbacks would delay the first tokens of other requests
REFERENCE_S = 0.0033  # CPU s of the fixed computation: the median of 200 runs on an idle 2-core virtual machine
REFERENCE_RUNS = 9
MAX_SLOWNESS = 3.0  # of the machine; beyond it, the limit does not grow


@dataclass
class LoopWatchdog:
    """CPU time of each callback of the loop, and how much a figure has changed in it."""

    sample: Callable[[], int]  # a figure that callbacks change, such as a number of tickets
    limit_s: float = MAX_CALLBACK_CPU_S
    longest_s: float = 0.0  # CPU time of the longest callback
    longest: str = ""  # the callback that took it
    callbacks: int = 0
    changes: list[int] = field(default_factory=list)  # of the figure, by the callbacks that changed it

    def __repr__(self) -> str:
        longest = f"longest {1e3 * self.longest_s:.1f} of at most {1e3 * self.limit_s:.1f} ms: {self.longest}"
        return f"<LoopWatchdog {self.callbacks} callbacks, {longest}>"

    @property
    def was_never_held(self) -> bool:
        """Whether no callback took longer than the limit, and there were any."""
        return self.callbacks > 0 and self.longest_s <= self.limit_s

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
    watchdog, run = LoopWatchdog(sample, MAX_CALLBACK_CPU_S * slowness()), asyncio.Handle._run
    asyncio.Handle._run = lambda handle: watchdog.run(handle, run)
    try:
        yield watchdog
    finally:
        asyncio.Handle._run = run


def slowness() -> float:
    """Return how many times slower than the stated machine this one is now, from 1 to `MAX_SLOWNESS`."""
    took_s = statistics.median(map(_fixed_computation, range(REFERENCE_RUNS)))
    return min(max(1.0, took_s / REFERENCE_S), MAX_SLOWNESS)


def _fixed_computation(total: int) -> float:
    """Return the CPU time of 50,000 multiplications and additions."""
    begun_at = time.thread_time()
    for number in range(50_000):
        total += number * number
    return time.thread_time() - begun_at
