"""Connections to files of SQLite, and their transactions."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from penstock.chassis.database.errors import StoreTooNew, StoreUnusable
from penstock.chassis.database.statements import Row

MAX_WAL_BYTES = 2**26  # size to which the journal is cut after a large transaction
_ROW_LOCK = re.compile(r"FOR UPDATE( OF \w+)?( SKIP LOCKED)?")


@contextmanager
def explained_errors(path: str) -> Iterator[None]:
    """Raise StoreUnusable, which says what to do, for an error of SQLite while the file is opened and read."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreUnusable(f"cannot open the store {path} ({error}): {_advice(error)}") from error


def _advice(error: sqlite3.Error) -> str:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the primary result code
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another process has it open; end that process first"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return "it is damaged or no store; restore a backup, or move it away to start with an empty store"
        case _:
            return "the process must be able to create and write this file and others beside it"


def prepare(connection: sqlite3.Connection, *, fsync: bool) -> None:
    """Set up a connection that writes. Raises sqlite3.Error if another process writes."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")  # otherwise journals of large statements stay open as files
    connection.execute("BEGIN IMMEDIATE")  # takes the lock now, before the first change
    connection.execute("COMMIT")


def migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Migrate the file to the present version, each step in one transaction. Raises StoreTooNew."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise StoreTooNew.of(version, len(migrations))
    for number, script in enumerate(migrations[version:], version + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")


@cache
def _in_sqlite(statement: str) -> str:
    return _ROW_LOCK.sub("", statement)


@dataclass(frozen=True, slots=True)
class SqliteTransaction:
    """An open transaction."""

    connection: sqlite3.Connection
    now: float

    def run(self, statement: str, *values: object) -> list[Row]:
        return self.connection.execute(_in_sqlite(statement), values).fetchall()

    def run_many(self, statement: str, values: Sequence[Sequence[object]]) -> list[Row]:
        text = _in_sqlite(statement)
        return [row for each in values for row in self.connection.execute(text, each)]

    def write(self, statement: str, values: Sequence[Sequence[object]]) -> None:
        self.connection.executemany(_in_sqlite(statement), values)
