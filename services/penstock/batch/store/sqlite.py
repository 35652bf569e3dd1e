"""The store in SQLite: one file, one process."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from penstock.batch.store.errors import StoreUnavailable
from penstock.batch.store.schema import SQLITE_MIGRATIONS
from penstock.batch.store.statements import Row

MEMORY = ":memory:"
LOCK_TIMEOUT_S = 5.0


@cache
def _in_sqlite(statement: str) -> str:
    return statement.replace("FOR UPDATE SKIP LOCKED", "").replace("FOR UPDATE", "")


@dataclass(frozen=True, slots=True)
class SqliteTransaction:
    """An open transaction."""

    connection: sqlite3.Connection
    now: float

    def run(self, statement: str, *values: object) -> list[Row]:
        return self.connection.execute(_in_sqlite(statement), values).fetchall()

    def write(self, statement: str, values: Sequence[Sequence[object]]) -> None:
        self.connection.executemany(_in_sqlite(statement), values)


@dataclass(eq=False)
class SqliteDatabase:
    """A file, for the threads of one process; one transaction runs at a time. Raises StoreUnavailable."""

    path: str
    clock: Callable[[], float]
    fsync: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """Commit what the block has written, or nothing if it or the commit fails."""
        with self._lock:
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
        with self._lock:
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
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self.fsync else 'NORMAL'}")
            connection.execute("PRAGMA foreign_keys = ON")
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection


def _migrate(connection: sqlite3.Connection) -> None:
    [(version,)] = connection.execute("PRAGMA user_version")
    if version > len(SQLITE_MIGRATIONS):
        raise StoreUnavailable(f"it is of a later release (version {version}); run that release")
    for number, script in enumerate(SQLITE_MIGRATIONS[version:], version + 1):
        connection.executescript(f"BEGIN; {script}; PRAGMA user_version = {number}; COMMIT;")
