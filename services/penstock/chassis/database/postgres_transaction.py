"""Transactions of PostgreSQL, in few round trips."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import psycopg

from penstock.chassis.database.location import StoreLocation
from penstock.chassis.database.postgres import BEGIN, StoreConnection, connect, limit_transactions, roll_back
from penstock.chassis.database.statements import Row

RECONNECT_INTERVAL_S = 0.5  # s after a connection that failed; meanwhile transactions fail at once
MIN_ARRAY = 4  # runs of a statement from which one run with arrays is faster
_BINARY = "%b"  # as text, an array of bytes costs 50 µs for each KiB
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


@cache
def _encoded(statement: str, placeholder: str = "%s") -> bytes:
    return statement.replace("?", placeholder).encode()


@dataclass(frozen=True, slots=True)
class PostgresTransaction:
    """An open transaction. Writes are sent with the next statement that returns rows, or with the commit."""

    connection: StoreConnection
    now: float
    by_array: Mapping[str, str] = field(default_factory=dict)  # forms of statements that have an array for each value
    _unsent: list[tuple[bytes, Sequence[object]]] = field(default_factory=list)

    def run(self, statement: str, *values: object) -> list[Row]:
        return self.run_many(statement, [values])

    def run_many(self, statement: str, values: Sequence[Sequence[object]]) -> list[Row]:
        if not values:
            return []
        text, bound = self._bind(statement, values)
        if not self._unsent and len(bound) == 1:
            return _rows(self.connection.execute(text, bound[0], binary=True))
        with self.connection.pipeline():
            self._send()
            cursors = [self.connection.execute(text, each, binary=True) for each in bound]
        return [row for each in cursors for row in _rows(each)]

    def write(self, statement: str, values: Sequence[Sequence[object]]) -> None:
        if values:
            text, bound = self._bind(statement, values)
            self._unsent.extend((text, each) for each in bound)

    def commit(self) -> None:
        with self.connection.pipeline():
            self._send()
            self.connection.execute("COMMIT")

    def _bind(self, statement: str, values: Sequence[Sequence[object]]) -> tuple[bytes, Sequence[Sequence[object]]]:
        """Return the text of a statement and the values of each run: one run with arrays, if there is such a form."""
        if len(values) >= MIN_ARRAY and (text := self.by_array.get(statement)):
            return _encoded(text, _BINARY), [list(map(list, zip(*values, strict=True)))]
        return _encoded(statement), values

    def _send(self) -> None:
        for text, values in self._unsent:
            self.connection.execute(text, values)
        self._unsent.clear()


def _rows(cursor: "psycopg.Cursor[Row]") -> list[Row]:
    return cursor.fetchall() if cursor.description else []


@dataclass(eq=False)
class PostgresSession:
    """Transactions on one connection, for one thread at a time. A connection that was lost is opened again."""

    location: StoreLocation
    application: str  # name at the server
    answer_timeout: float  # s
    by_array: Mapping[str, str] = field(default_factory=dict)
    _connection: StoreConnection | None = field(default=None, init=False)
    _reconnect_at: float = field(default=0.0, init=False)  # s of `time.monotonic`

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        """Commit what the block has written, or nothing if it fails. Raises psycopg.Error.

        Whether a commit whose answer was lost has taken place is not known.
        """
        connection, now = self._begin()
        try:
            transaction = PostgresTransaction(connection, now, self.by_array)
            yield transaction
            transaction.commit()
        except BaseException:
            roll_back(connection)
            raise

    def close(self) -> None:
        if self._connection:
            self._connection.close()

    def _begin(self) -> tuple[StoreConnection, float]:
        """Begin a transaction, on a new connection if the former one was lost. Return the time of the database."""
        if self._connection and not self._connection.closed:
            try:
                return self._connection, _begin(self._connection)
            except psycopg.Error:
                self._connection.close()  # a server that has restarted is noticed only now
        if time.monotonic() < self._reconnect_at:
            raise psycopg.OperationalError("its database cannot be reached")
        try:
            self._connection = connect(self.location, self.application)
            limit_transactions(self._connection, self.answer_timeout)
            return self._connection, _begin(self._connection)
        except psycopg.Error:
            self._reconnect_at = time.monotonic() + RECONNECT_INTERVAL_S
            raise


def _begin(connection: StoreConnection) -> float:
    """Begin a transaction. Return the time of the database: Unix, s."""
    with connection.pipeline():
        connection.execute(BEGIN)
        now = connection.execute(_NOW, binary=True)
    (seconds,) = _rows(now)[0]
    return float(seconds)
