"""Connections to PostgreSQL that read usage."""

from contextlib import suppress
from dataclasses import dataclass

import psycopg

from penstock.auth.store.postgres.connection import connect
from penstock.auth.store.rows import Row
from penstock.auth.store.usage_connection import QueryFailed, QueryTimeout
from penstock.chassis.database.location import StoreLocation
from penstock.chassis.database.postgres import NoAnswer, StoreConnection, limit_transactions

OWNER = "usage"  # of the connection's name at the server
CANCEL_TIMEOUT_S = 5.0  # s
ANSWER_MARGIN_S = 1.0  # s by which the server ends a statement before this side does
_PREPARE = (
    "SET default_transaction_read_only = on",
    "SET jit = off",  # compiling costs more than these statements
    "SET work_mem = '32MB'",
)


def connect_usage(location: StoreLocation, timeout: float) -> "PostgresUsage":
    """Connect for a statement of at most `timeout` s. Raises QueryFailed."""
    try:
        connection = connect(location, OWNER)
        try:
            for each in _PREPARE:
                connection.execute(each)
            limit_transactions(connection, timeout)
            connection.answer_timeout = timeout + ANSWER_MARGIN_S
        except BaseException:
            connection.close()
            raise
    except psycopg.Error as error:
        raise QueryFailed(" ".join(str(error).split())) from None
    return PostgresUsage(connection)


@dataclass(frozen=True, slots=True)
class PostgresUsage:
    """A connection of its own, so that the store's connection never waits for a query."""

    connection: StoreConnection

    def rows(self, statement: str, values: dict[str, object]) -> list[Row]:
        try:
            return self.connection.execute(statement.encode(), values).fetchall()
        except (psycopg.errors.QueryCanceled, psycopg.errors.TransactionTimeout, NoAnswer):
            raise QueryTimeout from None
        except psycopg.Error as error:
            raise QueryFailed(" ".join(str(error).split())) from None

    def cancel(self) -> None:
        with suppress(psycopg.Error):  # the statement has its limit
            self.connection.cancel_safe(timeout=CANCEL_TIMEOUT_S)

    def close(self) -> None:
        self.connection.close()
