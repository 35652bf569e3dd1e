"""The store's thread: many changes per transaction, written by one thread to the database of a backend."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from penstock.auth.store.backend import Backend
from penstock.auth.store.disk_usage import Watermark
from penstock.auth.store.roll_up import SLICE_INTERVAL_S
from penstock.auth.store.store import (
    Barrier,
    Change,
    Charged,
    HandedOver,
    OnAvailability,
    OnEvent,
    OnPersisted,
    PartitionsLost,
    PendingChange,
    StoreClosed,
    StoredState,
    StoreEvent,
    StoreThreadFailed,
    TenantUse,
)
from penstock.auth.store.writer import MAX_CHANGES_PER_TRANSACTION, ChangeWriter

log = structlog.get_logger()

RETRY_INTERVAL_S = 0.2  # s between attempts to write to a store that is unavailable
MAX_CHARGE_DELAY_S = 0.1  # s that a charge waits for a change that must be written at once, to share its commit
IDLE_INTERVAL_S = 1.0  # s between looks for rows of the ledger to roll up
MAX_SHUTDOWN_RETRIES = 10  # attempts at the end of the process, after which only edges have the unwritten charges


@dataclass(eq=False)
class ThreadedStore:
    """Sends changes to the writer thread. The changes that arrive during a commit form the next transaction.

    A change is reported as persisted only after its commit, and one commit serves all changes that wait: a promise
    costs one commit in an idle mesh and a fraction of one in a busy mesh. A commit survives the death of the process.

    A charge is written with the next other change, at the latest after `MAX_CHARGE_DELAY_S`. Its edge repeats it until
    it is confirmed, which happens after the commit. All changes of one iteration of the event loop are sent together.

    The thread ends when the store is closed. If it ends earlier, `watch` raises, which must end the process: changes
    that it had received are never answered.
    """

    backend: Backend
    clock: Callable[[], float] = time.time
    watermark: Watermark = field(default_factory=lambda: Watermark(1.0))
    pending: int = 0
    is_available: bool = True
    ledger_rows: int = 0
    unwritten: int = 0  # charges that were not written when the thread ended
    epochs: Mapping[int, int] | None = None  # at the start
    clock_offset: float = 0.0  # s by which the clock that all processes share is ahead of `clock`
    _on_availability: list[OnAvailability] = field(default_factory=list)
    _on_event: list[OnEvent] = field(default_factory=list)
    _early_events: list[StoreEvent] = field(default_factory=list)  # before the first `notify_events`
    _handed_over: asyncio.Event = field(default_factory=asyncio.Event)
    _unsent: list[PendingChange] = field(default_factory=list)  # in order; the thread has not received them
    _charge_timer: asyncio.TimerHandle | None = None  # sends the unsent charges
    _is_send_due: bool = False  # the unsent changes are sent in the next iteration of the event loop
    _entries: "queue.SimpleQueue[list[PendingChange] | None]" = field(default_factory=queue.SimpleQueue)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _closing: threading.Event = field(default_factory=threading.Event)
    _failure: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def write(self, change: Change, on_persisted: OnPersisted) -> None:
        if self._closing.is_set() or self._failure.done():
            on_persisted(StoreClosed("the store is closed"))
            return
        self.pending += 1
        self._unsent.append((change, on_persisted))
        if self._is_send_due:
            return
        if not isinstance(change, Charged):
            self._is_send_due = True
            self._loop.call_soon(self._send)
        elif self._charge_timer is None:
            self._charge_timer = self._loop.call_later(MAX_CHARGE_DELAY_S, self._send)

    def _send(self) -> None:
        """Send all unsent changes to the thread, which wakes up once for them."""
        self._is_send_due = False
        if self._charge_timer:
            self._charge_timer.cancel()
            self._charge_timer = None
        if self._unsent:
            self._entries.put(self._unsent)
            self._unsent = []

    def notify_availability(self, on_change: OnAvailability) -> None:
        self._on_availability.append(on_change)

    def notify_events(self, on_event: OnEvent) -> None:
        self._on_event.append(on_event)
        early, self._early_events = self._early_events, []
        for event in early:
            on_event(event)

    def owner_address(self, partition: int) -> str:
        return self.backend.owner_address(partition)

    async def read_uses(self) -> list[TenantUse]:
        return await asyncio.to_thread(self.backend.read_uses)

    def count_edges(self, edges: int) -> None:
        self.backend.count_edges(edges)

    async def hand_over(self) -> None:
        self.backend.hand_over()
        self.write(Barrier(), lambda _: None)  # the thread looks at once
        await self._handed_over.wait()

    @property
    def figures(self) -> dict[str, float]:
        return {
            "store_pending": self.pending,
            "store_available": self.is_available,
            "store_disk_used": self.watermark.used,
            "store_disk_high": self.watermark.is_high,
            "ledger_rows": self.ledger_rows,
        }

    async def flush(self) -> None:
        persisted = asyncio.Event()
        self.write(Barrier(), lambda _: persisted.set())
        await persisted.wait()

    async def watch(self) -> None:
        """Wait until cancelled. Raises StoreThreadFailed if the thread ends before the store is closed."""
        await asyncio.shield(self._failure)

    def close(self) -> None:
        """Accept no more changes. The thread ends when all earlier changes are written."""
        self._send()
        self._closing.set()
        self._entries.put(None)

    def run(self, opened: "asyncio.Future[StoredState]") -> None:
        """Run the thread: open the database, report the stored state, and write changes until closed."""
        try:
            state = self.backend.open()
            self._measure_clock()
            self.backend.notify_events(self._send_event)
            self.epochs = self.backend.epochs
        except Exception as error:  # noqa: BLE001  # the start fails with any error
            self._loop.call_soon_threadsafe(_resolve, opened, error)
            return
        self._loop.call_soon_threadsafe(_resolve, opened, state)
        try:
            self._write_until_closed()
            self.backend.close()
        except BaseException as error:  # noqa: BLE001  # the process ends with any error
            self._loop.call_soon_threadsafe(self._fail, error)
            with suppress(Exception):
                self.backend.close()

    def _measure_clock(self) -> None:
        before = self.clock()
        if (now := self.backend.server_time()) is not None:
            self.clock_offset = now - (before + self.clock()) / 2

    def _write_until_closed(self) -> None:
        backend = self.backend
        writer = ChangeWriter(backend.commit, self._report)
        attempts_left = MAX_SHUTDOWN_RETRIES
        slice_due = 0.0  # s of time.monotonic
        while True:
            wait = max(0.0, min(slice_due, backend.probe_due) - time.monotonic()) if writer.is_available else 0.0
            batch = self._next_batch(wait)
            writer.write(batch)
            if writer.is_available and time.monotonic() >= backend.probe_due:
                writer.write([], is_probe_due=True)
            if time.monotonic() >= slice_due:
                is_more_due = writer.is_available and backend.roll_up.run_slice(self.clock())
                slice_due = time.monotonic() + (SLICE_INTERVAL_S if is_more_due else IDLE_INTERVAL_S)
                self._loop.call_soon_threadsafe(self._on_disk_used, backend.used_share(), backend.roll_up.rows)
            if self._closing.is_set() and self._entries.empty():
                attempts_left -= 1
                if not writer.unwritten or not attempts_left:
                    break
            if not writer.is_available:
                time.sleep(RETRY_INTERVAL_S)
        self.unwritten = sum(isinstance(change, Charged) for change, _ in writer.unwritten)

    def _next_batch(self, wait: float) -> list[PendingChange]:
        """Return the queued changes; wait for the first one for at most `wait` s."""
        batch: list[PendingChange] = []
        try:
            while len(batch) < MAX_CHANGES_PER_TRANSACTION:
                entry = self._entries.get(block=wait > 0 and not batch, timeout=wait)
                if entry is None:
                    break
                batch.extend(entry)
        except queue.Empty:
            pass
        return batch

    def _report(self, batch: list[PendingChange], error: Exception | None) -> None:
        self._loop.call_soon_threadsafe(self._complete, batch, error)

    def _complete(self, batch: list[PendingChange], error: Exception | None) -> None:
        if not isinstance(error, PartitionsLost):
            self._set_available(error)
        self.pending -= len(batch)
        for change, on_persisted in batch:
            try:
                on_persisted(error)
            except Exception:  # the other changes of the batch must be answered
                log.exception("store_answer_failed", change=type(change).__name__)

    def _send_event(self, event: StoreEvent) -> None:
        self._loop.call_soon_threadsafe(self._report_event, event)

    def _report_event(self, event: StoreEvent) -> None:
        if isinstance(event, HandedOver):
            self._handed_over.set()
        if not self._on_event:  # the process still starts
            self._early_events.append(event)
        for on_event in self._on_event:
            on_event(event)

    def _set_available(self, error: BaseException | None) -> None:
        if self.is_available == (error is None):
            return
        self.is_available = error is None
        if error:
            log.error("store_unavailable", error=str(error), pending=self.pending)
        else:
            log.info("store_available", pending=self.pending)
        for on_change in self._on_availability:
            on_change(self.is_available)

    def _on_disk_used(self, used: float, ledger_rows: int) -> None:
        self.ledger_rows = ledger_rows
        if self.watermark.update(used):
            report = log.warning if self.watermark.is_high else log.info
            name = "store_disk_high" if self.watermark.is_high else "store_disk_normal"
            report(name, path=self.backend.name, used=round(used, 3), watermark=self.watermark.share)

    def _fail(self, error: BaseException) -> None:
        log.critical("store_thread_failed", error=repr(error), pending=self.pending)
        failure = StoreThreadFailed(f"the thread of the store ended with {error!r}; this process ends, restart it")
        failure.__cause__ = error
        self._failure.set_exception(failure)
        self._set_available(error)


def _resolve(opened: "asyncio.Future[StoredState]", result: StoredState | Exception) -> None:
    if opened.done():  # the start was cancelled
        return
    if isinstance(result, Exception):
        opened.set_exception(result)
    else:
        opened.set_result(result)
