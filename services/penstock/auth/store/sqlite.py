"""The store by default: one SQLite file, written by one thread, many changes to a transaction."""

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
from penstock.auth.store.schema import migrate
from penstock.auth.store.store import Barrier, Change, Charged, OnPersisted, StoredState

log = structlog.get_logger()

MAX_CHANGES_PER_TRANSACTION = 1_000  # changes in one transaction
LOCK_TIMEOUT_S = 10.0  # s; the process before this one may still be draining
RETRY_INTERVAL_S = 0.2  # s; between tries to keep a charge
MAX_SHUTDOWN_RETRIES = 10  # before charges that cannot be kept are given up at the end of the process

PendingChange = tuple[Change, OnPersisted]


class StoreClosed(Exception):
    """Written to after the end."""


@dataclass(eq=False)
class SqliteStore:
    """Changes go to the thread through a queue and come back done; what piled up meanwhile is the next transaction.

    So nothing is written behind anybody's back, and yet a commit is shared by all that wait: a promise costs one
    commit when the mesh is idle and a fraction of one when it is busy. A commit survives the death of the process;
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
        kept = asyncio.Event()
        self.write(Barrier(), lambda _: kept.set())
        await kept.wait()

    def close(self) -> None:
        """Take no more; the thread ends when all is kept."""
        self._closing.set()
        self._entries.put(None)

    def run(self, opened: "asyncio.Future[StoredState]") -> None:
        """The thread: open, tell what is there, keep what comes until closed."""
        try:
            connection = connect(self.path, fsync=self.fsync)
            books = sql.read(connection)
        except Exception as error:  # noqa: BLE001  # whatever it is, the start fails with it
            self._loop.call_soon_threadsafe(_resolve, opened, error)
            return
        self._loop.call_soon_threadsafe(_resolve, opened, books)
        self._write_until_closed(connection)
        connection.close()

    def _write_until_closed(self, connection: sqlite3.Connection) -> None:
        owed: list[PendingChange] = []  # charges that could not be kept yet
        last_tries = MAX_SHUTDOWN_RETRIES
        while True:
            batch = owed + self._next_batch(wait=not owed)
            error = _commit(connection, batch)
            owed = [entry for entry in batch if error and isinstance(entry[0], Charged)]
            done = [entry for entry in batch if entry not in owed] if owed else batch
            self._loop.call_soon_threadsafe(self._complete, done, error)
            if self._closing.is_set() and self._entries.empty():
                last_tries -= 1
                if not owed or not last_tries:
                    break
            if owed:
                time.sleep(RETRY_INTERVAL_S)
        if owed:
            log.error("charges_not_persisted", count=len(owed), error=str(error))

    def _next_batch(self, *, wait: bool) -> list[PendingChange]:
        """What has piled up, at least one change when `wait`; empty only when there is nothing or the end has come."""
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
        for _, then in batch:
            then(error)


def _resolve(opened: "asyncio.Future[StoredState]", result: StoredState | Exception) -> None:
    if opened.done():  # the start was given up meanwhile
        return
    if isinstance(result, Exception):
        opened.set_exception(result)
    else:
        opened.set_result(result)


def connect(path: str, *, fsync: bool = False) -> sqlite3.Connection:
    """Open the file for this process alone; raises sqlite3.OperationalError when another has it."""
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, cached_statements=32)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # two sets of buckets over one ledger would grant twice
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # else journals of large statements are files that stay open
    connection.execute("BEGIN IMMEDIATE")  # takes the lock now and not at the first reservation
    connection.execute("COMMIT")
    migrate(connection)
    return connection


def _commit(connection: sqlite3.Connection, batch: list[PendingChange]) -> Exception | None:
    """Keep all of `batch` or nothing; returns why nothing."""
    if not batch:
        return None
    try:
        connection.execute("BEGIN IMMEDIATE")
        for change, _ in batch:
            sql.apply(connection, change)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        log.error("store_write_failed", changes=len(batch), error=str(error))  # noqa: TRY400  # the text says it all
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return error
    return None


@asynccontextmanager
async def opened_store(path: str, *, fsync: bool = False) -> AsyncIterator[tuple[SqliteStore, StoredState]]:
    """A store and what is in it; leaving the block returns when all that was written is kept."""
    store = SqliteStore(path, fsync)
    opened: asyncio.Future[StoredState] = asyncio.get_running_loop().create_future()
    thread = threading.Thread(target=store.run, args=(opened,), name="auth-store", daemon=True)
    thread.start()
    try:
        yield store, await opened
    finally:
        store.close()
        await asyncio.to_thread(thread.join)
