"""Responses in PostgreSQL: a transaction for each call, on a connection that its thread alone uses."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import psycopg
import structlog

from penstock.auth.responses.errors import ResponseStoreUnavailable
from penstock.auth.responses.messages import failed
from penstock.auth.store.location import StoreLocation
from penstock.auth.store.postgres.connection import BEGIN, StoreConnection, connect, limit_transactions, roll_back
from penstock.auth.store.responses import statements, upkeep
from penstock.auth.store.responses.backend import ResponseTotals
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.auth.store.responses.statements import Row
from penstock.chassis.errors import Internal, PenstockError
from penstock.mesh.v1.responses_pb2 import StoreCall, StoreResult

log = structlog.get_logger()

CONNECTIONS = 4  # of each process, each with its thread
STATEMENT_TIMEOUT_S = 1.5  # s; a call has failed after that
RECONNECT_INTERVAL_S = 0.5  # s after a connection that failed; meanwhile calls fail at once
OWNER = "responses"  # of the connections' name at the server
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"

Result = TypeVar("Result")


@cache
def _in_postgres(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


@dataclass(frozen=True, slots=True)
class PostgresTransaction:
    """An open transaction."""

    connection: StoreConnection
    now: float

    def run(self, statement: str, *values: object) -> list[Row]:
        return _rows(self.connection.execute(_in_postgres(statement), values, binary=True))

    def run_many(self, statement: str, values: Sequence[Sequence[object]]) -> list[list[Row]]:
        if not values:
            return []
        text = _in_postgres(statement)
        with self.connection.pipeline():
            cursors = [self.connection.execute(text, each, binary=True) for each in values]
        return [_rows(each) for each in cursors]


def _rows(cursor: "psycopg.Cursor[Row]") -> list[Row]:
    return cursor.fetchall() if cursor.description else []


@dataclass(eq=False)
class PostgresResponses:
    """One connection. The backend of the ledger has migrated the database."""

    location: StoreLocation
    operations: ResponseOperations
    group_size: int = field(default=1, init=False)
    _connection: StoreConnection | None = field(default=None, init=False)
    _reconnect_at: float = field(default=0.0, init=False)  # s of `time.monotonic`

    def open(self) -> None:
        """Connect at the first call, because the database may go away at any time."""

    def perform(self, calls: Sequence[StoreCall]) -> list[StoreResult]:
        return [self._perform_one(each) for each in calls]

    def _perform_one(self, call: StoreCall) -> StoreResult:
        try:
            with self._transaction() as transaction:
                return self.operations.perform(transaction, call)
        except PenstockError as error:
            return failed(call.call_id, error)
        except psycopg.Error as error:
            return failed(call.call_id, ResponseStoreUnavailable(_text(error)))
        except Exception:  # of one call; later ones are performed
            log.exception("stored_response_failed", operation=call.WhichOneof("operation"))
            return failed(call.call_id, Internal("internal error"))

    def run_upkeep(self) -> bool:
        return self._run(upkeep.run_slice)

    def delete_of_tenant(self, tenant_id: str) -> bool:
        return self._run(lambda transaction: upkeep.delete_of_tenant(transaction, tenant_id))

    def totals(self) -> ResponseTotals:
        return self._run(lambda transaction: ResponseTotals(*map(int, transaction.run(statements.TOTALS)[0])))

    def _run(self, work: Callable[[PostgresTransaction], Result]) -> Result:
        try:
            with self._transaction() as transaction:
                return work(transaction)
        except psycopg.Error as error:
            raise ResponseStoreUnavailable(_text(error)) from None

    def close(self) -> None:
        if self._connection:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[PostgresTransaction]:
        """Commit what the block has written, or nothing if it or the commit fails."""
        connection, now = self._begin()
        try:
            yield PostgresTransaction(connection, now)
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise

    def _begin(self) -> tuple[StoreConnection, float]:
        """Begin a transaction, on a new connection if the former one was lost. Returns the time of the database."""
        if self._connection and not self._connection.closed:
            try:
                return self._connection, _begin_on(self._connection)
            except psycopg.Error:
                self._connection.close()  # a server that has restarted is noticed only now
        if time.monotonic() < self._reconnect_at:
            raise ResponseStoreUnavailable("its database cannot be reached")
        try:
            self._connection = connect(self.location, OWNER)
            limit_transactions(self._connection, STATEMENT_TIMEOUT_S)
            return self._connection, _begin_on(self._connection)
        except psycopg.Error:
            self._reconnect_at = time.monotonic() + RECONNECT_INTERVAL_S
            raise


def _begin_on(connection: StoreConnection) -> float:
    with connection.pipeline():
        connection.execute(BEGIN)
        now = connection.execute(_NOW, binary=True)
    (seconds,) = _rows(now)[0]
    return float(seconds)


def _text(error: psycopg.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
