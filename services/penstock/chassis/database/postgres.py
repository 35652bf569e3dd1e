"""Connections to PostgreSQL. Every wait for the server has a limit, so that a silent server counts as unavailable."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.chassis.database.errors import StoreTooNew, StoreUnusable
from penstock.chassis.database.location import StoreLocation
from penstock.chassis.database.statements import Row

ANSWER_TIMEOUT_S = 2.0  # s in which the server answers a batch; about the time after which the lease has lapsed
START_TIMEOUT_S = 60.0  # s; the same while the store is opened: a migration, and reading the state
MIN_TRANSACTION_TIMEOUT_VERSION = 170_000
# Of libpq; the URL may set them differently. A peer that is silent at the level of TCP is lost after 3 s.
_DEFAULTS = {
    "connect_timeout": "2",
    "tcp_user_timeout": "3000",  # ms
    "keepalives_idle": "1",  # s
    "keepalives_interval": "1",  # s
    "keepalives_count": "3",
}
logging.getLogger("psycopg").setLevel(logging.ERROR)  # its warnings repeat that a connection is lost
WaitTimeout = psycopg.errors._WaitTimeout  # noqa: SLF001  # it has no public name
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"  # whatever the default of the database is; the fence relies on it


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time. The connection is closed."""


class StoreConnection(psycopg.Connection[Row]):
    """A connection whose waits are limited."""

    answer_timeout: float = START_TIMEOUT_S

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit = timeout or self.answer_timeout
        try:
            return super().wait(gen, interval, limit)
        except WaitTimeout:
            self.close()
            raise NoAnswer(f"the server has not answered in {limit:g} s") from None


def connect(location: StoreLocation, application: str) -> StoreConnection:
    """Connect. Transactions are begun explicitly. Raises psycopg.Error.

    application: name of the session in pg_stat_activity, at most 63 bytes.
    """
    chosen = conninfo_to_dict(location.url)
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in chosen}
    conninfo = make_conninfo(location.url, **defaults, application_name=application)
    connection = StoreConnection.connect(conninfo, autocommit=True, prepare_threshold=0)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # of `transaction()`
    try:
        limit_transactions(connection, START_TIMEOUT_S)
    except BaseException:
        connection.close()
        raise
    return connection


def limit_transactions(connection: StoreConnection, seconds: float) -> None:
    """Let the server end transactions that would hold locks for longer, also if this process is paused."""
    names = ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"]
    if connection.info.server_version >= MIN_TRANSACTION_TIMEOUT_VERSION:
        names.append("transaction_timeout")
    for name in names:
        connection.execute("SELECT set_config(%s, %s, false)", (name, str(round(seconds * 1_000))))
    connection.answer_timeout = seconds


def check_encoding(connection: StoreConnection) -> None:
    """Raise StoreUnusable if the database cannot hold all texts."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreUnusable(
            f"the database of the store has the encoding {encoding}; create one with CREATE DATABASE … ENCODING 'UTF8'"
            " TEMPLATE template0"
        )


def roll_back(connection: StoreConnection) -> None:
    """End a transaction that failed; close the connection if that fails, too."""
    try:
        if not connection.closed:
            connection.rollback()
    except psycopg.Error:
        connection.close()


@contextmanager
def explained_errors(location: StoreLocation, setting: str) -> Iterator[None]:
    """Raise StoreUnusable, which says what to do and has no password, for an error while the store is opened.

    setting: the environment variable that names the store.
    """
    try:
        yield
    except psycopg.Error as error:
        raise StoreUnusable(f"cannot open the store {location} ({text_of(error)}): {_advice(error, setting)}") from None


def text_of(error: psycopg.Error) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def is_rolled_back(error: psycopg.Error) -> bool:
    """Return whether the server has answered that it wrote nothing of a transaction.

    The end of its session (FATAL) may be the answer to a transaction that was committed a moment before.
    """
    return error.diag.severity_nonlocalized == "ERROR"


def migrate(connection: psycopg.Connection[Row], migrations: Sequence[str], *, table: str, lock: int) -> bool:
    """Migrate the database to the present version, in the transaction of the caller. Return whether it had another.

    Of processes that start at once, one migrates and the others wait for it. Raises StoreTooNew.

    table: where the version is kept. lock: of pg_advisory_xact_lock.
    """
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (version integer NOT NULL)".encode())
    row = connection.execute(f"SELECT version FROM {table}".encode()).fetchone()  # noqa: S608  # a constant
    version = int(row[0]) if row else 0
    if version > len(migrations):
        raise StoreTooNew.of(version, len(migrations))
    if version == len(migrations):
        return False
    for script in migrations[version:]:
        connection.execute(script.encode(), prepare=False)
    connection.execute(f"DELETE FROM {table}".encode())  # noqa: S608  # as above
    connection.execute(f"INSERT INTO {table} VALUES (%s)".encode(), (len(migrations),))  # noqa: S608  # as above
    return True


def _advice(error: psycopg.Error, setting: str) -> str:
    match error:
        case psycopg.errors.InsufficientPrivilege() | psycopg.errors.InvalidSchemaName():
            return "the role needs CONNECT on the database, and USAGE and CREATE on a schema in its search path"
        case psycopg.errors.ReadOnlySqlTransaction():
            return "the server is a read-only replica; name the primary"
        case psycopg.OperationalError():
            return f"start the server, and check host, port, database, role and password in {setting}"
        case _:
            return "check that the database is one of Penstock's, or empty; docs/operations/stores.md describes it"
