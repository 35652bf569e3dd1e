"""The connection to the SQLite file: one process writes at a time, in batches, and reads usage meanwhile."""

import sqlite3

from penstock.auth.store.sqlite import sql
from penstock.auth.store.store import PendingChange
from penstock.chassis.database.location import MEMORY
from penstock.chassis.database.sqlite import migrate, prepare

LOCK_TIMEOUT_S = 10.0  # s; the former process may still be draining


class StoreConnection(sqlite3.Connection):
    """The connection that writes, with the lock that keeps other processes out."""

    lock: sqlite3.Connection | None = None

    def close(self) -> None:
        super().close()
        if self.lock:
            self.lock.close()


def connect(path: str, *, fsync: bool = False) -> StoreConnection:
    """Open the file for this process alone, and migrate it. Raises sqlite3.Error and StoreTooNew.

    The lock is on a file of its own (`<store>.lock`), which SQLite releases with the process, so that other connections
    of this process can read. A process of a release without that file locks the store itself, and is kept out as well.
    """
    connection = sqlite3.connect(
        path, timeout=LOCK_TIMEOUT_S, isolation_level=None, cached_statements=32, factory=StoreConnection
    )
    try:
        if path != MEMORY:
            connection.lock = locked_store(path)
        prepare(connection, fsync=fsync)
        migrate(connection, sql.MIGRATIONS)
    except Exception:
        connection.close()
        raise
    return connection


def locked_store(path: str, *, timeout: float = LOCK_TIMEOUT_S) -> sqlite3.Connection:
    """Keep other processes out of the store until the connection is closed. Raises sqlite3.OperationalError."""
    lock = sqlite3.connect(f"{path}.lock", timeout=timeout, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")  # two processes over one ledger would grant every limit twice
    except BaseException:
        lock.close()
        raise
    return lock


def connect_reader(path: str) -> sqlite3.Connection:
    """Open another connection of the process that has the store open. It reads in any one thread at a time."""
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def commit(
    connection: sqlite3.Connection, batch: list[PendingChange], *, reports_usage: bool = False
) -> sqlite3.Error | None:
    """Write all changes of a batch in one transaction, or none. Return the error; None on success."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for change, _ in batch:
            sql.apply(connection, change, reports_usage=reports_usage)
        if not batch:
            sql.probe(connection)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return error
    return None
