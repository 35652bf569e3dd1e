"""The event loop of one process, which a driver runs one callback at a time, on virtual time."""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from typing import Any, Protocol, TypeVar, TypeVarTuple

from penstock.faults.world.host_clock import HostClock

MAX_THREAD_DELAY_S = 0.004  # s; upper limit of the time that a call in a thread takes
MIN_STALE_TIMERS = 64  # cancelled timers above this number are removed once they outnumber the others

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class LoopDriver(Protocol):
    """The driver of all loops: has the clock, and is notified of loops with ready callbacks or new timers."""

    now: float  # s
    rng: random.Random

    def on_ready(self, loop: "ProcessLoop") -> None: ...

    def on_timer(self, when: float, loop: "ProcessLoop") -> None: ...


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number of creation, so that equal seeds cancel a set of tasks in the same order."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    @classmethod
    def reset_numbers(cls) -> None:
        cls._numbers = itertools.count()


class ProcessLoop(asyncio.AbstractEventLoop):
    """An event loop without I/O. Its callbacks run in the order in which they were scheduled, as in asyncio."""

    def __init__(self, name: str, driver: LoopDriver, clock: HostClock) -> None:
        self.name = name
        self.clock = clock
        self.ready: deque[asyncio.Handle] = deque()
        self.is_queued = False  # in the driver's list of ready loops
        self.is_halted = False  # frozen or dead: no callback runs
        self.failures: list[dict[str, Any]] = []  # uncaught exceptions, as asyncio reports them
        self._driver = driver
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # by the time of the world
        self._numbers = itertools.count()
        self._cancelled_timers = 0

    def __repr__(self) -> str:
        return f"<ProcessLoop {self.name}: {len(self.ready)} ready, {len(self._timers)} timers>"

    # Called by the driver.

    @property
    def next_timer(self) -> float | None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        return timers[0][0] if timers else None

    def fire_due_timers(self) -> None:
        """Make the callbacks of expired timers ready."""
        while (when := self.next_timer) is not None and when <= self._driver.now:
            self._enqueue(heapq.heappop(self._timers)[2])

    def run_callback(self) -> None:
        """Run the oldest callback."""
        handle = self.ready.popleft()
        if not handle.cancelled():
            handle._run()  # noqa: SLF001  # as every event loop does

    def close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an abandoned async generator in its own loop, as asyncio's hook does."""
        self.call_soon(lambda: self.create_task(generator.aclose()))

    # The interface of asyncio.

    def time(self) -> float:
        return self.clock.monotonic(self._driver.now)

    def call_soon(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Args], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        world_time = self.clock.world_time(when)
        heapq.heappush(self._timers, (world_time, next(self._numbers), timer))
        self._driver.on_timer(world_time, self)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return NumberedTask(coro, loop=self, name=name, context=context)

    async def run_in_executor(self, executor: Any, func: Callable[..., Result], *args: Any) -> Result:  # type: ignore[override]  # awaited by every caller
        await asyncio.sleep(MAX_THREAD_DELAY_S * self._driver.rng.random())
        return func(*args)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > MIN_STALE_TIMERS + len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def _enqueue(self, handle: asyncio.Handle) -> None:
        self.ready.append(handle)
        if not (self.is_queued or self.is_halted):
            self._driver.on_ready(self)
