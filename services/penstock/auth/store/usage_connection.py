"""Connections that read usage beside the store's own connection, each for one statement."""

import sqlite3
import time
from collections.abc import Callable
from typing import Any, Protocol

from penstock.auth.store.location import StoreLocation
from penstock.auth.store.rows import Row
from penstock.auth.store.sqlite.connection import connect_reader

PROGRESS_STEPS = 10_000  # instructions of SQLite between two looks at the time; about 1 ms


class QueryTimeout(Exception):
    """The statement took longer than its limit, or was cancelled."""


class QueryFailed(Exception):
    """The store could not be read."""


class UsageConnection(Protocol):
    """A connection for one statement, in one thread."""

    def rows(self, statement: str, values: dict[str, object]) -> list[Row]:
        """Run a statement. Raises QueryTimeout or QueryFailed."""

    def cancel(self) -> None:
        """End the statement that another thread runs, soon."""

    def close(self) -> None: ...


Connect = Callable[[float], UsageConnection]  # limit of the statement in s; raises QueryFailed


def usage_connections(location: StoreLocation) -> Connect | None:
    """Return what connects to a store; None if it is in memory, where a second connection finds nothing."""
    if location.is_postgres:
        from penstock.auth.store.postgres.usage import connect_usage  # noqa: PLC0415  # its driver loads only if used

        return lambda timeout: connect_usage(location, timeout)
    return (lambda timeout: SqliteUsage(location.path, timeout)) if location.is_file else None


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
