"""Connections to SQLite that read usage."""

import sqlite3
import time
from typing import Any

from penstock.auth.store.rows import Row
from penstock.auth.store.sqlite.connection import connect_reader
from penstock.auth.store.usage_connection import QueryFailed, QueryTimeout

PROGRESS_STEPS = 10_000  # instructions of SQLite between two looks at the time; about 1 ms


class SqliteUsage:
    """A reading connection to the file. In its journal mode, readers and the writer do not wait for each other."""

    def __init__(self, path: str, timeout: float) -> None:
        self._connection = connect_reader(path)
        give_up_at = time.monotonic() + timeout
        self._is_cancelled = False
        self._connection.set_progress_handler(
            lambda: int(self._is_cancelled or time.monotonic() >= give_up_at), PROGRESS_STEPS
        )

    def rows(self, statement: str, values: dict[str, Any]) -> list[Row]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
                raise QueryTimeout from None
            raise QueryFailed(str(error)) from error

    def cancel(self) -> None:
        self._is_cancelled = True

    def close(self) -> None:
        self._connection.close()
