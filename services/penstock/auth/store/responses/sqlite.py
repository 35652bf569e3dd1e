"""Responses in SQLite: a file of its own beside the store, so that large rows never delay a commit of the ledger."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from penstock.auth.responses.errors import ResponseStoreUnavailable
from penstock.auth.responses.messages import failed
from penstock.auth.store.disk_usage import free_bytes
from penstock.auth.store.responses import statements, upkeep
from penstock.auth.store.responses.backend import ResponseTotals
from penstock.auth.store.responses.operations import ResponseOperations
from penstock.chassis.database.errors import StoreUnusable
from penstock.chassis.database.location import MEMORY
from penstock.chassis.database.sqlite import SqliteTransaction, explained_errors, migrate, prepare
from penstock.chassis.errors import Internal, PenstockError
from penstock.mesh.v1.responses_pb2 import StoreCall, StoreResult

log = structlog.get_logger()

SUFFIX = ".responses"  # of the file, after the path of the store
GROUP_SIZE = 64  # calls of one transaction
LEDGER_BYTES = 256 << 20  # free bytes of the volume below which no response is created, so that the ledger has them
LOCK_TIMEOUT_S = 1.0  # s; only a tool of the operator can lock the file beside this process

Result = TypeVar("Result")

# One script per version. Scripts are added, never changed.
MIGRATIONS = (
    """
    CREATE TABLE responses (
        number INTEGER PRIMARY KEY, tenant_id TEXT NOT NULL, response_id TEXT NOT NULL,
        previous_response_id TEXT NOT NULL, background INTEGER NOT NULL, created_at REAL NOT NULL,
        expires_at REAL NOT NULL, status INTEGER NOT NULL, epoch INTEGER NOT NULL, lease_until REAL NOT NULL,
        cancel_requested INTEGER NOT NULL, token_count INTEGER NOT NULL, context_bytes INTEGER NOT NULL,
        size INTEGER NOT NULL, UNIQUE (tenant_id, response_id)
    ) STRICT;
    CREATE INDEX responses_by_expiry ON responses (expires_at);
    CREATE INDEX responses_in_progress ON responses (number) WHERE status = 1;
    CREATE TABLE response_contents (
        number INTEGER NOT NULL REFERENCES responses ON DELETE CASCADE, kind TEXT NOT NULL, sealed BLOB NOT NULL,
        PRIMARY KEY (number, kind)
    ) STRICT;
    CREATE TABLE response_tokens (
        number INTEGER NOT NULL REFERENCES responses ON DELETE CASCADE, first_index INTEGER NOT NULL,
        token_count INTEGER NOT NULL, parts BLOB NOT NULL, PRIMARY KEY (number, first_index)
    ) STRICT;
    CREATE TABLE response_usage (
        tenant_id TEXT PRIMARY KEY, bytes INTEGER NOT NULL, responses INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
)


@dataclass(eq=False)
class SqliteResponses:
    """The file, or a database in memory. Calls that wait share a transaction."""

    store_path: str
    operations: ResponseOperations
    clock: Callable[[], float]
    fsync: bool = field(default=False, kw_only=True)
    group_size: int = field(default=GROUP_SIZE, init=False)
    _connection: sqlite3.Connection | None = field(default=None, init=False)

    @property
    def path(self) -> str:
        return MEMORY if self.store_path == MEMORY else f"{self.store_path}{SUFFIX}"

    def open(self) -> None:
        """Open the file. If it is damaged or the disk is full, each call tries again, and auth admits requests.

        Raises StoreTooNew.
        """
        try:
            with explained_errors(self.path):
                self._connect()
        except StoreUnusable as error:
            log.error("responses_not_opened", error=str(error))  # noqa: TRY400  # the message has the cause

    def perform(self, calls: Sequence[StoreCall]) -> list[StoreResult]:
        """Perform calls in one transaction; each in one of its own if that fails, so that one fails alone."""
        try:
            with self._transaction() as transaction:
                return [self._perform_one(transaction, each) for each in calls]
        except sqlite3.Error as error:
            if len(calls) == 1:
                return [failed(calls[0].call_id, ResponseStoreUnavailable(str(error)))]
        except Exception:  # of one call; the others and later ones are performed
            if len(calls) == 1:
                log.exception("stored_response_failed", operation=calls[0].WhichOneof("operation"))
                return [failed(calls[0].call_id, Internal("internal error"))]
        return [result for each in calls for result in self.perform([each])]

    def _perform_one(self, transaction: SqliteTransaction, call: StoreCall) -> StoreResult:
        try:
            if call.HasField("create"):
                self._check_disk()
            return self.operations.perform(transaction, call)
        except PenstockError as error:
            return failed(call.call_id, error)

    def _check_disk(self) -> None:
        """Raise ResponseStoreUnavailable if the volume has too little space, which is left to the ledger."""
        free = free_bytes(self.path)
        if free < LEDGER_BYTES:
            raise ResponseStoreUnavailable(f"its volume has {free} bytes left, which are the ledger's; enlarge it")

    def run_upkeep(self) -> bool:
        return self._run(upkeep.run_slice)

    def delete_of_tenant(self, tenant_id: str) -> bool:
        return self._run(lambda transaction: upkeep.delete_of_tenant(transaction, tenant_id))

    def totals(self) -> ResponseTotals:
        return self._run(lambda transaction: ResponseTotals(*transaction.run(statements.TOTALS)[0]))

    def _run(self, work: Callable[[SqliteTransaction], Result]) -> Result:
        try:
            with self._transaction() as transaction:
                return work(transaction)
        except sqlite3.Error as error:
            raise ResponseStoreUnavailable(str(error)) from None

    def close(self) -> None:
        if self._connection:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[SqliteTransaction]:
        """Commit what the block has written, or nothing if it or the commit fails."""
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield SqliteTransaction(connection, self.clock())
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back(connection)
            raise

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        """End a transaction that failed; the next one opens the file again if that fails, too."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        return self._connection or self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_S, isolation_level=None, cached_statements=64)
        try:
            prepare(connection, fsync=self.fsync)
            migrate(connection, MIGRATIONS)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection
