"""The connection to the SQLite file: opened by one process at a time, and committed in batches."""

import sqlite3

from penstock.auth.store import sql
from penstock.auth.store.roll_up import LedgerRollUp
from penstock.auth.store.store import PendingChange

LOCK_TIMEOUT_S = 10.0  # s; the former process may still be draining
MAX_WAL_BYTES = 2**26  # size to which the journal is cut after a large transaction


def connect(path: str, *, fsync: bool = False) -> sqlite3.Connection:
    """Open the file exclusively. Raises sqlite3.OperationalError if another process has it open."""
    connection = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, cached_statements=32)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # two processes over one ledger would grant every limit twice
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # otherwise journals of large statements stay open as files
    connection.execute("BEGIN IMMEDIATE")  # takes the lock now, before the first reservation
    connection.execute("COMMIT")
    sql.migrate(connection)
    return connection


def commit(
    connection: sqlite3.Connection, batch: list[PendingChange], roll_up: LedgerRollUp | None = None
) -> Exception | None:
    """Write all changes of a batch in one transaction, or none. Return the error; None on success."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for change, _ in batch:
            sql.apply(connection, change)
        if not batch:
            sql.probe(connection)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        return error
    if roll_up:
        roll_up.count(batch)
    return None
