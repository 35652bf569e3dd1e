"""The SQLite store: one file, written by one thread, with many changes per transaction."""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from penstock.auth.store import sql
from penstock.auth.store.sql import migrate
from penstock.auth.store.store import Barrier, Change, Charged, OnPersisted, StoredState

log = structlog.get_logger()

MAX_CHANGES_PER_TRANSACTION = 1_000
LOCK_TIMEOUT_S = 10.0  # s; the former process may still be draining
RETRY_INTERVAL_S = 0.2  # s between attempts to write a charge
MAX_SHUTDOWN_RETRIES = 10  # attempts at the end of the process, after which unwritten charges are lost

PendingChange = tuple[Change, OnPersisted]


class StoreClosed(Exception):
    """A change was written after the store was closed."""


@dataclass(eq=False)
class SqliteStore:
    """Sends changes to the writer thread. The changes that arrive during a commit form the next transaction.

    A change is reported as persisted only after its commit, and one commit serves all changes that wait: a promise
    costs one commit in an idle mesh and a fraction of one in a busy mesh. A commit survives the death of the process;
    with `fsync` it also survives the loss of power.
    """

    path: str
    fsync: bool = False
    pending: int = 0
    _entries: "queue.SimpleQueue[PendingChange | None]" = field(default_factory=queue.SimpleQueue)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _closing: threading.Event = field(default_factory=threading.Event)

    def write(self, change: Change, on_persisted: OnPersisted) -> None:
        if self._closing.is_set():
            on_persisted(StoreClosed("the store is closed"))
            return
        self.pending += 1
        self._entries.put((change, on_persisted))

    async def flush(self) -> None:
        persisted = asyncio.Event()
        self.write(Barrier(), lambda _: persisted.set())
        await persisted.wait()

    def close(self) -> None:
        """Accept no more changes. The thread ends when all earlier changes are written."""
        self._closing.set()
        self._entries.put(None)

    def run(self, opened: "asyncio.Future[StoredState]") -> None:
        """Run the thread: open the file, report the stored state, and write changes until closed."""
        try:
            connection = connect(self.path, fsync=self.fsync)
            state = sql.read(connection)
        except Exception as error:  # noqa: BLE001  # the start fails with any error
            self._loop.call_soon_threadsafe(_resolve, opened, error)
            return
        self._loop.call_soon_threadsafe(_resolve, opened, state)
        self._write_until_closed(connection)
        connection.close()

    def _write_until_closed(self, connection: sqlite3.Connection) -> None:
        unwritten: list[PendingChange] = []  # charges to retry
        attempts_left = MAX_SHUTDOWN_RETRIES
        while True:
            batch = unwritten + self._next_batch(wait=not unwritten)
            error = _commit(connection, batch)
            unwritten = [entry for entry in batch if error and isinstance(entry[0], Charged)]
            completed = [entry for entry in batch if entry not in unwritten] if unwritten else batch
            self._loop.call_soon_threadsafe(self._complete, completed, error)
            if self._closing.is_set() and self._entries.empty():
                attempts_left -= 1
                if not unwritten or not attempts_left:
                    break
            if unwritten:
                time.sleep(RETRY_INTERVAL_S)
        if unwritten:
            log.error("charges_not_persisted", count=len(unwritten), error=str(error))

    def _next_batch(self, *, wait: bool) -> list[PendingChange]:
        """Return the queued changes. With `wait`, wait for the first one; the list is empty only at the end."""
        batch: list[PendingChange] = []
        try:
            while len(batch) < MAX_CHANGES_PER_TRANSACTION:
                entry = self._entries.get(block=wait and not batch)
                if entry is None:
                    break
                batch.append(entry)
        except queue.Empty:
            pass
        return batch

    def _complete(self, batch: list[PendingChange], error: Exception | None) -> None:
        self.pending -= len(batch)
        for _, on_persisted in batch:
            on_persisted(error)


def _resolve(opened: "asyncio.Future[StoredState]", result: StoredState | Exception) -> None:
    if opened.done():  # the start was cancelled
        return
    if isinstance(result, Exception):
        opened.set_exception(result)
    else:
        opened.set_result(result)


def connect(path: str, *, fsync: bool = False) -> sqlite3.Connection:
    """Open the file exclusively. Raises sqlite3.OperationalError if another process has it open."""
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, cached_statements=32)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # two processes over one ledger would grant every limit twice
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # otherwise journals of large statements stay open as files
    connection.execute("BEGIN IMMEDIATE")  # takes the lock now, before the first reservation
    connection.execute("COMMIT")
    migrate(connection)
    return connection


def _commit(connection: sqlite3.Connection, batch: list[PendingChange]) -> Exception | None:
    """Write all changes of a batch in one transaction, or none. Return the error; None on success."""
    if not batch:
        return None
    try:
        connection.execute("BEGIN IMMEDIATE")
        for change, _ in batch:
            sql.apply(connection, change)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        log.error("store_write_failed", changes=len(batch), error=str(error))  # noqa: TRY400  # the text is sufficient
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return error
    return None


@asynccontextmanager
async def opened_store(path: str, *, fsync: bool = False) -> AsyncIterator[tuple[SqliteStore, StoredState]]:
    """Open a store and yield it with its state. Leaving the block waits until all changes are written."""
    store = SqliteStore(path, fsync)
    opened: asyncio.Future[StoredState] = asyncio.get_running_loop().create_future()
    thread = threading.Thread(target=store.run, args=(opened,), name="auth-store", daemon=True)
    thread.start()
    try:
        yield store, await opened
    finally:
        store.close()
        await asyncio.to_thread(thread.join)
