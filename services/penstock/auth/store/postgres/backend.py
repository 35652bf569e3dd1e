"""The PostgreSQL backend: one transaction per batch, in a few round trips, each verified to be its owner's."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import psycopg
import structlog

from penstock.auth.store.location import StoreLocation
from penstock.auth.store.postgres.charges import Statement
from penstock.auth.store.postgres.connection import (
    ANSWER_TIMEOUT_S,
    BEGIN,
    StoreConnection,
    check_encoding,
    connect,
    explained_errors,
    limit_transactions,
    roll_back,
)
from penstock.auth.store.postgres.lease import PartitionLease
from penstock.auth.store.postgres.ledger import PostgresLedgerUpkeep
from penstock.auth.store.postgres.outcomes import BatchOutcomes
from penstock.auth.store.postgres.ownership import check_fence, end_sessions, take_all
from penstock.auth.store.postgres.schema import migrate
from penstock.auth.store.postgres.statements import read, statements, tenants_of
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.store import PendingChange, StoredState

log = structlog.get_logger()


@dataclass(eq=False)
class PostgresBackend:
    """A database, of which this process owns all partitions.

    A batch is committed only if its partitions are still owned. A connection that is lost is opened again at once, and
    then with each commit, which the thread tries at most five times a second.
    """

    location: StoreLocation
    retention: Retention
    owner: str
    lease: PartitionLease = field(default_factory=PartitionLease)
    _connection: StoreConnection | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return str(self.location)

    @property
    def probe_due(self) -> float:
        return self.lease.renewal_due

    def open(self, closing: threading.Event) -> StoredState:
        with explained_errors(self.location):
            connection = self._connection = connect(self.location, self.owner)
            try:
                return self._open(connection, closing)
            except BaseException:
                connection.close()
                raise

    def _open(self, connection: StoreConnection, closing: threading.Event) -> StoredState:
        check_encoding(connection)
        migrate(connection)
        self._ownership = take_all(connection, self.owner, self.lease, closing)
        self._outcomes = BatchOutcomes(self.owner)
        with connection.transaction():
            state = read(connection)
        self.roll_up = PostgresLedgerUpkeep(lambda: self._connection, self._ownership, self.retention)
        limit_transactions(connection, ANSWER_TIMEOUT_S)
        return state

    def commit(self, batch: list[PendingChange]) -> psycopg.Error | None:
        was_connected = not self._is_disconnected
        error = self._attempt(batch)
        if error and was_connected and self._is_disconnected:  # a new connection may decide the batch at once
            error = self._attempt(batch)
        if error:
            self._outcomes.on_failed()
        else:
            self.roll_up.count(batch)
        return error

    def _attempt(self, batch: list[PendingChange]) -> psycopg.Error | None:
        """Write what was not applied of a batch. Raises PartitionsTaken."""
        try:
            connection = self._connected()
            self._outcomes.decide(connection)
            if not self._outcomes.is_applied(batch):
                self._transact(connection, batch)
        except psycopg.Error as error:
            if self._connection:
                roll_back(self._connection)
            check_fence(error)
            return error
        return None

    def _transact(self, connection: StoreConnection, batch: list[PendingChange]) -> None:
        sent_at = time.monotonic()
        renews = not batch or self.lease.is_renewal_due(sent_at)
        if renews and self.lease.has_lapsed(sent_at):
            log.warning("partition_lease_lapsed", owner=self.owner, late_s=round(sent_at - self.lease.expires_at, 3))
        changes = [change for change, _ in self._outcomes.begin(batch)]
        tenants = None if renews or not changes else tenants_of(changes)
        head = [self._ownership.hold(tenants), self._outcomes.begin_statement()]
        renewal = [self._ownership.renewal(self.lease.ttl)] if renews else []
        try:
            _run(connection, [*head, *renewal, *self._outcomes.compensation(), *statements(changes)])
        except psycopg.Error:
            if not connection.closed:  # the server has answered: nothing was written
                self._outcomes.on_rejected()
            raise
        self._outcomes.on_applied()
        if renews:
            self.lease.on_renewed(sent_at)

    @property
    def _is_disconnected(self) -> bool:
        return self._connection is None or bool(self._connection.closed)

    def _connected(self) -> StoreConnection:
        """Return the connection, a new one if it was lost."""
        if self._connection is None or self._connection.closed:
            self._connection = self._reconnect()
        return self._connection

    def _reconnect(self) -> StoreConnection:
        connection = connect(self.location, self.owner)
        try:
            limit_transactions(connection, ANSWER_TIMEOUT_S)
            end_sessions(connection, [self.owner])  # the former session may still hold locks
        except BaseException:
            connection.close()
            raise
        return connection

    def used_share(self) -> float:
        return 0.0  # the server's volume is not visible here

    def close(self) -> None:
        """Release the partitions, so that the next process needs not wait for the end of the lease."""
        if self._connection is None or self._connection.closed:
            return
        try:
            _run(self._connection, self._ownership.release())
        except psycopg.Error as error:
            log.warning("partitions_not_released", owner=self.owner, error=str(error))
        finally:
            self._connection.close()


def _run(connection: StoreConnection, parts: Iterable[Statement]) -> None:
    """Run statements in one transaction and one round trip."""
    with connection.pipeline():
        cursor = connection.cursor()
        cursor.execute(BEGIN)
        for statement, values in parts:
            cursor.execute(statement, values)
        cursor.execute("COMMIT")
