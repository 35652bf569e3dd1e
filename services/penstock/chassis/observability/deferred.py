"""Deferred work: spans and metrics are recorded after pending responses have been written.

When a hundred clients cancel at once, the process has a hundred cancels to forward and as many spans to record.
Recording costs more and would delay the next request's cancel. Log lines are not deferred, because they must outlive a
process that is killed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary, proxy

import structlog

log = structlog.get_logger()

Call = Callable[[], object]

# Longer than a burst of cancels takes, and than a step of an engine; a light load is recorded a few times a second.
DEFERRAL_S = 0.25
TURN_INTERVAL_S = 0.005  # between two turns
MAX_DEFERRED_CALLS = 4_096
MIN_CALLS_PER_TURN = 8  # about 1 ms
TURN_SHARE = 1 / 8  # share of the waiting calls that a turn runs, if larger; so any rate of calls is sustained


class DeferredCalls:
    """Deferred calls of one event loop, run in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Call] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call) -> None:
        """Defer `call`; its exceptions are logged. If `MAX_DEFERRED_CALLS` wait, the oldest runs at once."""
        if len(self._calls) >= MAX_DEFERRED_CALLS:
            self._run(self._calls.popleft())
        self._calls.append(call)
        if self._timer is None:
            self._timer = self._loop.call_later(DEFERRAL_S, self._run_turn)

    def flush(self) -> None:
        """Run all calls now."""
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
    """The deferred calls of the running loop."""
    loop = asyncio.get_running_loop()
    found = _by_loop.get(loop)
    if found is None:
        found = _by_loop[loop] = DeferredCalls(proxy(loop))  # a proxy, as a reference would keep the key alive
    return found


def defer(call: Call) -> None:
    """Have the running loop run `call` after pending responses have been written."""
    deferred_calls().add(call)
