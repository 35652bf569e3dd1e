"""The SQLite store: one file, written by one thread, with many changes per transaction."""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from penstock.auth.store import sql
from penstock.auth.store.connection import commit, connect, explained_errors
from penstock.auth.store.disk_usage import Watermark, used_share
from penstock.auth.store.roll_up import KEEP_ALL, SLICE_INTERVAL_S, LedgerRollUp, Retention
from penstock.auth.store.store import Barrier, Change, OnAvailability, OnPersisted, PendingChange, StoredState
from penstock.auth.store.writer import MAX_CHANGES_PER_TRANSACTION, ChangeWriter
from penstock.auth.telemetry import record_disk_used

log = structlog.get_logger()

RETRY_INTERVAL_S = 0.2  # s between attempts to write to a store that is unavailable
IDLE_INTERVAL_S = 1.0  # s between looks for rows of the ledger to roll up
MAX_SHUTDOWN_RETRIES = 10  # attempts at the end of the process, after which only edges have the unwritten charges


class StoreClosed(Exception):
    """A change was written after the store was closed or its thread failed."""


class StoreThreadFailed(Exception):
    """The store's thread ended with an error that is not SQLite's, so that no change can be written any more."""


class ChargesNotPersisted(Exception):
    """The store was closed with charges that could not be written. Edges that hold them repeat them."""


@dataclass(eq=False)
class SqliteStore:
    """Sends changes to the writer thread. The changes that arrive during a commit form the next transaction.

    A change is reported as persisted only after its commit, and one commit serves all changes that wait: a promise
    costs one commit in an idle mesh and a fraction of one in a busy mesh. A commit survives the death of the process;
    with `fsync` it also survives the loss of power.

    The thread ends when the store is closed. If it ends earlier, `watch` raises, which must end the process: changes
    that it had received are never answered.
    """

    path: str
    fsync: bool = False
    retention: Retention = KEEP_ALL
    clock: Callable[[], float] = time.time
    watermark: Watermark = field(default_factory=lambda: Watermark(1.0))
    pending: int = 0
    is_available: bool = True
    ledger_rows: int = 0
    unwritten: int = 0  # charges that were not written when the thread ended
    _on_availability: list[OnAvailability] = field(default_factory=list)
    _entries: "queue.SimpleQueue[PendingChange | None]" = field(default_factory=queue.SimpleQueue)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _closing: threading.Event = field(default_factory=threading.Event)
    _failure: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def write(self, change: Change, on_persisted: OnPersisted) -> None:
        if self._closing.is_set() or self._failure.done():
            on_persisted(StoreClosed("the store is closed"))
            return
        self.pending += 1
        self._entries.put((change, on_persisted))

    def notify_availability(self, on_change: OnAvailability) -> None:
        self._on_availability.append(on_change)

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
        self._closing.set()
        self._entries.put(None)

    def run(self, opened: "asyncio.Future[StoredState]") -> None:
        """Run the thread: open the file, report the stored state, and write changes until closed."""
        try:
            with explained_errors(self.path):
                connection = connect(self.path, fsync=self.fsync)
                state = sql.read(connection)
        except Exception as error:  # noqa: BLE001  # the start fails with any error
            self._loop.call_soon_threadsafe(_resolve, opened, error)
            return
        self._loop.call_soon_threadsafe(_resolve, opened, state)
        try:
            self._write_until_closed(connection)
            connection.close()
        except BaseException as error:  # noqa: BLE001  # the process ends with any error
            self._loop.call_soon_threadsafe(self._fail, error)

    def _write_until_closed(self, connection: sqlite3.Connection) -> None:
        roll_up = LedgerRollUp(connection, self.retention)
        writer = ChangeWriter(lambda batch: commit(connection, batch, roll_up), self._report)
        attempts_left = MAX_SHUTDOWN_RETRIES
        slice_due = 0.0  # s of time.monotonic
        while True:
            wait = max(0.0, slice_due - time.monotonic()) if writer.is_available else 0.0
            writer.write(self._next_batch(wait))
            if time.monotonic() >= slice_due:
                is_more_due = writer.is_available and roll_up.run_slice(self.clock())
                slice_due = time.monotonic() + (SLICE_INTERVAL_S if is_more_due else IDLE_INTERVAL_S)
                self._loop.call_soon_threadsafe(self._on_disk_used, used_share(self.path), roll_up.rows)
            if self._closing.is_set() and self._entries.empty():
                attempts_left -= 1
                if not writer.unwritten or not attempts_left:
                    break
            if not writer.is_available:
                time.sleep(RETRY_INTERVAL_S)
        self.unwritten = len(writer.unwritten)

    def _next_batch(self, wait: float) -> list[PendingChange]:
        """Return the queued changes; wait for the first one for at most `wait` s."""
        batch: list[PendingChange] = []
        try:
            while len(batch) < MAX_CHANGES_PER_TRANSACTION:
                entry = self._entries.get(block=wait > 0 and not batch, timeout=wait)
                if entry is None:
                    break
                batch.append(entry)
        except queue.Empty:
            pass
        return batch

    def _report(self, batch: list[PendingChange], error: Exception | None) -> None:
        self._loop.call_soon_threadsafe(self._complete, batch, error)

    def _complete(self, batch: list[PendingChange], error: Exception | None) -> None:
        self._set_available(error)
        self.pending -= len(batch)
        for change, on_persisted in batch:
            try:
                on_persisted(error)
            except Exception:  # the other changes of the batch must be answered
                log.exception("store_answer_failed", change=type(change).__name__)

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
        record_disk_used(used)
        if self.watermark.update(used):
            report = log.warning if self.watermark.is_high else log.info
            name = "store_disk_high" if self.watermark.is_high else "store_disk_normal"
            report(name, path=self.path, used=round(used, 3), watermark=self.watermark.share)

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


@asynccontextmanager
async def opened_store(
    path: str,
    *,
    fsync: bool = False,
    retention: Retention = KEEP_ALL,
    clock: Callable[[], float] = time.time,
    disk_watermark: float = 1.0,
) -> AsyncIterator[tuple[SqliteStore, StoredState]]:
    """Open a store and yield it with its state. Leaving the block waits until all changes are written.

    Raises ChargesNotPersisted after the block if charges could not be written.
    """
    store = SqliteStore(path, fsync, retention, clock, Watermark(disk_watermark))
    opened: asyncio.Future[StoredState] = asyncio.get_running_loop().create_future()
    thread = threading.Thread(target=store.run, args=(opened,), name="auth-store", daemon=True)
    thread.start()
    try:
        yield store, await opened
    finally:
        store.close()
        await asyncio.to_thread(thread.join)
        if store.unwritten:
            log.error("charges_not_persisted", count=store.unwritten)
    if store.unwritten:
        raise ChargesNotPersisted(
            f"{store.unwritten} charges were not written to {path}; edges hold them and repeat them after the next"
            " start of auth. Free space on the volume and start auth before the edges end"
        )
