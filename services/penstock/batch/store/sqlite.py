"""The store in SQLite: one file, one process."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.batch.store.errors import StoreUnavailable
from penstock.batch.store.schema import SQLITE_MIGRATIONS
from penstock.chassis.database.sqlite import SqliteTransaction, explained_errors, migrate, prepare

LOCK_TIMEOUT_S = 5.0


@dataclass(eq=False)
class SqliteDatabase:
    """A file, for the threads of one process; one transaction runs at a time. Raises StoreUnavailable."""

    path: str
    clock: Callable[[], float]
    fsync: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _connection: sqlite3.Connection | None = None
    _is_closed: bool = False

    def open(self) -> None:
        """Open and migrate the file. Raises StoreUnusable and StoreTooNew."""
        with self._lock, explained_errors(self.path):
            self._connect()

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """Commit what the block has written, or nothing if it or the commit fails."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable("it is closed")
            try:
                connection = self._connection or self._connect()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield SqliteTransaction(connection, self.clock())
                    connection.execute("COMMIT")
                except BaseException:
                    self._roll_back(connection)
                    raise
            except sqlite3.Error as error:
                raise StoreUnavailable(str(error)) from error

    def close(self) -> None:
        """Close the file once the present transaction has ended: a thread may outlive the task that waited."""
        with self._lock:
            self._is_closed = True
            if self._connection:
                self._connection.close()
                self._connection = None

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        """End a transaction that failed; the next one opens the file again if that fails, too."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            prepare(connection, fsync=self.fsync)
            migrate(connection, SQLITE_MIGRATIONS)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection
