"""A thread that performs calls on stored responses with a backend of its own."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog

from penstock.auth.responses.errors import ResponseStoreUnavailable
from penstock.auth.store.responses.backend import ResponseBackend, ResponseTotals
from penstock.mesh.v1.responses_pb2 import StoreCall, StoreResult

log = structlog.get_logger()

UPKEEP_INTERVAL_S = 1.0  # s between slices of the upkeep
BUSY_UPKEEP_INTERVAL_S = 0.05  # s between slices while more is due
TOTALS_INTERVAL_S = 5.0  # s between reports of what is stored

Work = Callable[[ResponseBackend], None]
OnResult = Callable[[StoreResult], None]
Result = TypeVar("Result")


class Caller(Protocol):
    """The edge that calls."""

    @property
    def instance_id(self) -> str: ...

    def unwritten_bytes(self) -> int:
        """Return the bytes of its results that are not sent."""


@dataclass(eq=False, slots=True)
class PendingCall:
    """A call that waits for its result."""

    call: StoreCall
    caller: Caller
    on_result: OnResult
    size: int  # bytes
    is_abandoned: bool = False  # it has failed; the thread need not perform it


@dataclass(eq=False)
class CallThread:
    """Performs calls in order, as many at once as its backend takes. With `has_upkeep` it also runs the upkeep.

    Everything that it reports is called on the event loop.
    """

    backend: ResponseBackend
    has_upkeep: bool
    on_results: Callable[[Sequence[PendingCall], Sequence[StoreResult | None]], None] = field(init=False)
    on_totals: Callable[[ResponseTotals], None] = field(init=False)
    _entries: "queue.SimpleQueue[PendingCall | Work | None]" = field(default_factory=queue.SimpleQueue)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _upkeep_due: float = field(default=0.0, init=False)  # s of `time.monotonic`
    _totals_due: float = field(default=0.0, init=False)  # s of `time.monotonic`

    def put(self, pending: PendingCall) -> None:
        self._entries.put(pending)

    def queued(self) -> int:
        return self._entries.qsize()

    async def start(self, name: str) -> None:
        """Start the thread. Return once its backend is open, or raise its error."""
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name=name, daemon=True)
        self._thread.start()
        await opened

    async def stop(self) -> None:
        """Perform what was put before, and end the thread."""
        self._entries.put(None)
        await asyncio.to_thread(self._thread.join)

    async def run(self, work: Callable[[ResponseBackend], Result]) -> Result:
        """Run `work` in the thread. Raises what it raises."""
        done: asyncio.Future[Result] = self._loop.create_future()

        def run_and_report(backend: ResponseBackend) -> None:
            try:
                result = work(backend)
            except Exception as error:  # noqa: BLE001  # raised by the caller's `await`
                self._loop.call_soon_threadsafe(_reject, done, error)
            else:
                self._loop.call_soon_threadsafe(_resolve, done, result)

        self._entries.put(run_and_report)
        return await done

    def _run(self, opened: "asyncio.Future[None]") -> None:
        try:
            self.backend.open()
        except Exception as error:  # noqa: BLE001  # the start fails with any error
            self._loop.call_soon_threadsafe(_reject, opened, error)
            return
        self._loop.call_soon_threadsafe(_resolve, opened, None)
        while self._perform_next():
            if self.has_upkeep:
                self._run_upkeep()
        self.backend.close()

    def _perform_next(self) -> bool:
        """Wait for entries and perform them. Return False once the thread is stopped."""
        calls: list[PendingCall] = []
        timeout = max(0.0, self._upkeep_due - time.monotonic()) if self.has_upkeep else None
        try:
            entry = self._entries.get(timeout=timeout)
            while isinstance(entry, PendingCall):
                calls.append(entry)
                if len(calls) == self.backend.group_size:
                    break
                entry = self._entries.get_nowait()
        except queue.Empty:
            entry = calls[-1] if calls else _nothing
        if calls:
            self._perform(calls)
        if entry is None:
            return False
        if not isinstance(entry, PendingCall):
            entry(self.backend)
        return True

    def _perform(self, calls: Sequence[PendingCall]) -> None:
        """Perform calls and report all of them, with a result for each that was not abandoned."""
        wanted = [each for each in calls if not each.is_abandoned]
        results = dict(zip(wanted, self.backend.perform([each.call for each in wanted]), strict=True))
        self._loop.call_soon_threadsafe(self.on_results, calls, [results.get(each) for each in calls])

    def _run_upkeep(self) -> None:
        """Run what is due. An error does not end the thread, because calls depend on it."""
        try:
            self._run_due_upkeep(time.monotonic())
        except ResponseStoreUnavailable as error:
            log.debug("response_upkeep_delayed", error=error.message)
            self._upkeep_due = time.monotonic() + UPKEEP_INTERVAL_S
        except Exception:
            log.exception("response_upkeep_failed")
            self._upkeep_due = time.monotonic() + UPKEEP_INTERVAL_S

    def _run_due_upkeep(self, now: float) -> None:
        if now >= self._upkeep_due:
            is_more_due = self.backend.run_upkeep()
            self._upkeep_due = time.monotonic() + (BUSY_UPKEEP_INTERVAL_S if is_more_due else UPKEEP_INTERVAL_S)
        if now >= self._totals_due:
            self._totals_due = now + TOTALS_INTERVAL_S
            self._loop.call_soon_threadsafe(self.on_totals, self.backend.totals())


def _nothing(_backend: ResponseBackend) -> None: ...


def _resolve(future: "asyncio.Future[Result]", result: Result) -> None:
    if not future.done():  # else its waiter was cancelled
        future.set_result(result)


def _reject(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():  # as above
        future.set_exception(error)
