"""The store in PostgreSQL: one transaction at a time on each of a few connections."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, LifoQueue

import psycopg

from penstock.batch.store import statements as sql
from penstock.batch.store.errors import StoreUnavailable
from penstock.batch.store.schema import POSTGRES_MIGRATIONS
from penstock.chassis.database.location import StoreLocation
from penstock.chassis.database.postgres import (
    check_encoding,
    connect,
    explained_errors,
    is_rolled_back,
    migrate,
    text_of,
)
from penstock.chassis.database.postgres_transaction import PostgresSession, PostgresTransaction

APPLICATION = "penstock-batch"  # name of the sessions at the server
SETTING = "PENSTOCK_BATCH_STORE"
CONNECTIONS = 8  # of each process; operations beyond wait for one
CONNECTION_WAIT_S = 5.0
ANSWER_TIMEOUT_S = 5.0  # s for each statement and each transaction
VERSION_TABLE = "penstock_batch_schema"
MIGRATION_LOCK = 0x70656E7374626174  # of pg_advisory_xact_lock: "penstbat"

# Forms of statements that have an array for each value.
BY_ARRAY: Mapping[str, str] = {
    sql.ADD_CHUNK: """
        INSERT INTO chunks (number, first_line, line_count, byte_offset, byte_length)
        SELECT * FROM unnest((?)::int8[], (?)::int8[], (?)::int8[], (?)::int8[], (?)::int8[])
    """,
    sql.ADD_RESULT: """
        INSERT INTO results (number, line, is_error, content)
        SELECT * FROM unnest((?)::int8[], (?)::int8[], (?)::int2[], (?)::bytea[])
        ON CONFLICT DO NOTHING RETURNING number, line
    """,
    sql.LEASE_CHUNK: """
        UPDATE chunks SET lease_until = new.lease_until
        FROM unnest((?)::float8[], (?)::int8[], (?)::int8[]) AS new (lease_until, number, first_line)
        WHERE chunks.number = new.number AND chunks.first_line = new.first_line
    """,
}


@dataclass(eq=False)
class PostgresDatabase:
    """A database that all replicas share. A connection that was lost is opened again by the next transaction."""

    location: StoreLocation
    _idle: "LifoQueue[PostgresSession]" = field(default_factory=LifoQueue)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        for _ in range(CONNECTIONS):
            self._idle.put(PostgresSession(self.location, APPLICATION, ANSWER_TIMEOUT_S, BY_ARRAY))

    def open(self) -> None:
        """Migrate the database. Raises StoreUnusable and StoreTooNew."""
        with explained_errors(self.location, SETTING), connect(self.location, APPLICATION) as connection:
            check_encoding(connection)
            with connection.transaction():
                migrate(connection, POSTGRES_MIGRATIONS, table=VERSION_TABLE, lock=MIGRATION_LOCK)

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        """Commit what the block has written, or nothing if it or the commit fails. Raises StoreUnavailable."""
        try:
            session = self._idle.get(timeout=CONNECTION_WAIT_S)
        except Empty:
            raise StoreUnavailable("all connections to its database are in use") from None
        try:
            with session.transaction() as transaction:
                yield transaction
        except psycopg.Error as error:
            raise StoreUnavailable(text_of(error), is_in_doubt=not is_rolled_back(error)) from None
        finally:
            self._idle.put(session)
            if self._is_closed:
                self._close_idle()

    def close(self) -> None:
        """Close the connections, each once its transaction has ended: a thread may outlive the task that waited."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()
