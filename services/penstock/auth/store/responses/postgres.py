"""Responses in PostgreSQL: a transaction for each call, on a connection that its thread alone uses."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
MIN_ARRAY = 4  # runs of a statement from which one run with arrays is faster
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"

Result = TypeVar("Result")

# Forms of statements that have an array for each value; a run for each response costs 40 µs at this end alone.
BY_ARRAY: Mapping[str, str] = {
    statements.LOCK: f"""
        SELECT {statements.COLUMNS} FROM responses WHERE (tenant_id, response_id) IN (
            SELECT * FROM unnest((?)::text[] COLLATE "C", (?)::text[] COLLATE "C")
        ) ORDER BY tenant_id, response_id FOR UPDATE
    """,  # noqa: S608  # constants
    statements.UPDATE: """
        UPDATE responses SET expires_at = new.expires_at, status = new.status, epoch = new.epoch,
            lease_until = new.lease_until, cancel_requested = new.cancel_requested, token_count = new.token_count,
            context_bytes = new.context_bytes, size = new.size
        FROM unnest((?)::float8[], (?)::int2[], (?)::int8[], (?)::float8[], (?)::bool[], (?)::int8[], (?)::int8[],
            (?)::int8[], (?)::int8[])
            AS new (expires_at, status, epoch, lease_until, cancel_requested, token_count, context_bytes, size, number)
        WHERE responses.number = new.number
    """,
    statements.PUT_TOKENS: """
        INSERT INTO response_tokens (number, first_index, token_count, parts)
        SELECT * FROM unnest((?)::int8[], (?)::int8[], (?)::int8[], (?)::bytea[])
    """,
}


def _in_postgres(statement: str, values: Sequence[Sequence[object]]) -> tuple[bytes, Sequence[Sequence[object]]]:
    """Return the text of a statement and the values of each run: one run with arrays, if there is such a form."""
    if len(values) >= MIN_ARRAY and (text := BY_ARRAY.get(statement)):
        return _encoded(text), [list(map(list, zip(*values, strict=True)))]
    return _encoded(statement), values


@cache
def _encoded(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


@dataclass(frozen=True, slots=True)
class PostgresTransaction:
    """An open transaction. Writes are sent with the next statement that returns rows, or with the commit."""

    connection: StoreConnection
    now: float
    _unsent: list[tuple[bytes, Sequence[object]]] = field(default_factory=list)

    def run(self, statement: str, *values: object) -> list[Row]:
        return self.run_many(statement, [values])

    def run_many(self, statement: str, values: Sequence[Sequence[object]]) -> list[Row]:
        if not values:
            return []
        text, bound = _in_postgres(statement, values)
        if not self._unsent and len(bound) == 1:
            return _rows(self.connection.execute(text, bound[0], binary=True))
        with self.connection.pipeline():
            self._send()
            cursors = [self.connection.execute(text, each, binary=True) for each in bound]
        return [row for each in cursors for row in _rows(each)]

    def write(self, statement: str, values: Sequence[Sequence[object]]) -> None:
        if values:
            text, bound = _in_postgres(statement, values)
            self._unsent.extend((text, each) for each in bound)

    def commit(self) -> None:
        with self.connection.pipeline():
            self._send()
            self.connection.execute("COMMIT")

    def _send(self) -> None:
        for text, values in self._unsent:
            self.connection.execute(text, values)
        self._unsent.clear()


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
            transaction = PostgresTransaction(connection, now)
            yield transaction
            transaction.commit()
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
