"""What nobody waits for: spans and measurements are made once those who wait have been served.

A crowd that leaves at once is a hundred requests' worth of cancels to pass on, and of records to make. The records cost
more, and would come before the next one's cancel. Only what a process that is killed would lose anyway is put off; log
lines are not.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary, proxy

import structlog

log = structlog.get_logger()

Call = Callable[[], object]

DEFERRAL_S = 0.1  # s; longer than a crowd's cancels take, and than an engine's step
TURN_INTERVAL_S = 0.005  # s, between two turns
MAX_DEFERRED_CALLS = 4_096  # calls that wait
MIN_CALLS_PER_TURN = 8  # calls; about a millisecond
TURN_SHARE = 1 / 8  # of what waits, where that is more: what comes in the long run is done, at whatever rate


class DeferredCalls:
    """Calls put off, made in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Call] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Have `call` made in a moment; what it raises is logged. Where `MOST` wait, the oldest is made at once."""
        if len(self._calls) >= MAX_DEFERRED_CALLS:
            self._run(self._calls.popleft())
        self._calls.append(call)
        if self._timer is None:
            self._timer = self._loop.call_later(DEFERRAL_S, self._run_turn)

    def flush(self) -> None:
        """Make all calls now."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        while self._calls:
            self._run(self._calls.popleft())

    def _run_turn(self) -> None:
        for _ in range(min(len(self._calls), max(MIN_CALLS_PER_TURN, round(TURN_SHARE * len(self._calls))))):
            self._run(self._calls.popleft())
        self._timer = self._loop.call_later(TURN_INTERVAL_S, self._run_turn) if self._calls else None

    def _run(self, call: Call) -> None:
        try:
            call()
        except Exception:
            log.exception("deferred_call_failed")


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, DeferredCalls] = WeakKeyDictionary()


def deferred_calls() -> DeferredCalls:
    """The one of the running loop."""
    loop = asyncio.get_running_loop()
    found = _by_loop.get(loop)
    if found is None:
        found = _by_loop[loop] = DeferredCalls(proxy(loop))  # which what is kept for it must not keep
    return found


def defer(call: Call) -> None:
    """Have `call` made by the running loop once those who wait have been served."""
    deferred_calls().add(call)
