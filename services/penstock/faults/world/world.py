"""The clock and the scheduler of one world: a seed decides which event loop runs its next callback."""

import asyncio
import heapq
import itertools
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.faults.world.event_loop import NumberedTask, ProcessLoop
from penstock.faults.world.host_clock import HostClock

CALLBACK_S = 1e-6  # s that a callback takes; without it, a timer that is rounded down would fire again for ever
MAX_CALLBACKS = 100_000  # a world needs a few thousand, and a world with a hanging request a few ten thousand


class Livelock(Exception):
    """A world reached its limit of callbacks: some process runs without end."""


class World:
    """Runs the event loops of all processes, one callback at a time; jumps to the next event if no loop is ready.

    Callbacks of one loop run in asyncio's order. The next loop is chosen at random, as the seed decides.
    """

    def __init__(self, seed: int, *, max_callbacks: int = MAX_CALLBACKS) -> None:
        self.rng = random.Random(f"{seed} turns")
        self.now = 0.0  # s since the start
        self.max_callbacks = max_callbacks
        self.callbacks = 0
        self.loops: list[ProcessLoop] = []
        self.clocks: defaultdict[str, HostClock] = defaultdict(HostClock)  # by host
        self._ready_loops: list[ProcessLoop] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._timers: list[tuple[float, int, ProcessLoop]] = []  # may hold timers that have been cancelled
        self._numbers = itertools.count()
        self._running_loop: ProcessLoop | None = None
        NumberedTask.reset_numbers()

    def __repr__(self) -> str:
        return f"<World at {self.now:.6f} s, {len(self.loops)} loops, {len(self._events)} events>"

    def add_loop(self, name: str) -> ProcessLoop:
        host = name.partition(".")[0]  # an engine runs on the host of its worker
        loop = ProcessLoop(name, self, self.clocks[host])  # type: ignore[abstract]  # it has no I/O methods
        self.loops.append(loop)
        return loop

    def unix_time(self) -> float:
        """Return the Unix time in s that the running process sees."""
        return self._running_clock.unix(self.now)

    def monotonic_time(self) -> float:
        return self._running_clock.monotonic(self.now)

    @property
    def _running_clock(self) -> HostClock:
        return self._running_loop.clock if self._running_loop else self.clocks[""]

    def schedule(self, when: float, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback` at the time `when`, outside of every process."""
        heapq.heappush(self._events, (when, next(self._numbers), callback, args))

    def on_ready(self, loop: ProcessLoop) -> None:
        loop.is_queued = True
        self._ready_loops.append(loop)

    def on_timer(self, when: float, loop: ProcessLoop) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), loop))

    def halt(self, loop: ProcessLoop) -> None:
        loop.is_halted = True

    def resume(self, loop: ProcessLoop) -> None:
        """Resume a halted loop; timers that expired meanwhile fire at once."""
        loop.is_halted = False
        loop.fire_due_timers()
        if loop.ready and not loop.is_queued:
            self.on_ready(loop)

    def run(self, until: Callable[[], bool], *, limit: float) -> bool:
        """Run until `until()` is true, as checked after each clock jump; False if `limit` is reached first."""
        while not until():
            self.settle()
            if not self._advance_clock(limit):
                return until()
        return True

    def settle(self) -> None:
        """Run all callbacks that are ready."""
        while self._ready_loops:
            self._run_callback()

    @contextmanager
    def running_as(self, loop: ProcessLoop) -> Iterator[None]:
        """Run the block with `loop` as the running event loop."""
        before = self._running_loop
        self._set_running_loop(loop)
        try:
            yield
        finally:
            self._set_running_loop(before)

    def _run_callback(self) -> None:
        ready = self._ready_loops
        place = int(self.rng.random() * len(ready)) if len(ready) > 1 else 0
        loop = ready[place]
        if loop.is_halted or not loop.ready:
            loop.is_queued = False
            ready[place] = ready[-1]
            ready.pop()
            return
        if loop is not self._running_loop:
            self._set_running_loop(loop)
        if self.callbacks >= self.max_callbacks:
            message = f"{self.callbacks} callbacks were run, and {loop.name} has more"
            raise Livelock(message)
        loop.run_callback()
        self.callbacks += 1
        self.now += CALLBACK_S
        while self._events and self._events[0][0] <= self.now:
            self._run_event()

    def _advance_clock(self, limit: float) -> bool:
        """Advance the clock to the next event or timer; False if there is none before `limit`."""
        loop = self._next_timer_loop()
        when = min(self._timers[0][0] if loop else limit, self._events[0][0] if self._events else limit)
        if when >= limit:
            self.now = max(self.now, limit)
            return False
        self.now = max(self.now, when)
        while self._events and self._events[0][0] <= self.now:
            self._run_event()
        while (loop := self._next_timer_loop()) and self._timers[0][0] <= self.now:
            loop.fire_due_timers()
        return True

    def _next_timer_loop(self) -> ProcessLoop | None:
        """Return the loop with the next timer; timers of halted loops fire after they are resumed."""
        timers = self._timers
        while timers:
            when, _, loop = timers[0]
            if not loop.is_halted and loop.next_timer is not None and loop.next_timer <= when:
                return loop
            heapq.heappop(timers)
        return None

    def _run_event(self) -> None:
        _, _, callback, args = heapq.heappop(self._events)
        callback(*args)

    def _set_running_loop(self, loop: ProcessLoop | None) -> None:
        self._running_loop = loop
        asyncio._set_running_loop(loop)  # noqa: SLF001  # as a running loop does
        sys.set_asyncgen_hooks(None, loop.close_generator if loop else None)
