"""The PostgreSQL backend: one transaction per batch, in a few round trips, by the owner of its partitions alone."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import psycopg
import structlog

from penstock.auth.partitions.keeper import PartitionKeeper
from penstock.auth.partitions.lease import PartitionLease
from penstock.auth.store.postgres.charges import Statement
from penstock.auth.store.postgres.connection import connect
from penstock.auth.store.postgres.ledger import PostgresLedgerUpkeep
from penstock.auth.store.postgres.outcomes import BatchOutcomes
from penstock.auth.store.postgres.ownership import (
    PostgresPartitions,
    end_sessions,
    hold,
    is_taken,
    release,
    resign,
)
from penstock.auth.store.postgres.schema import migrate
from penstock.auth.store.postgres.statements import read_uses, statements
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.store import (
    OnEvent,
    PartitionsLost,
    PendingChange,
    Release,
    StoredState,
    StoreEvent,
    Taken,
    TenantUse,
)
from penstock.auth.store.writer import partition_of_change
from penstock.chassis.database.location import StoreLocation
from penstock.chassis.database.postgres import (
    ANSWER_TIMEOUT_S,
    BEGIN,
    StoreConnection,
    check_encoding,
    explained_errors,
    is_rolled_back,
    limit_transactions,
    roll_back,
)

log = structlog.get_logger()

STORE_SETTING = "PENSTOCK_AUTH_STORE"


@dataclass(eq=False)
class PostgresBackend:
    """A database, of which this process owns some partitions.

    A batch is committed only if its partitions are still owned. A connection that is lost is opened again at once, and
    then with each commit, which the thread tries at most five times a second.
    """

    location: StoreLocation
    retention: Retention
    owner: str
    lease: PartitionLease = field(default_factory=PartitionLease)
    address: str = ""  # of this process, for operators
    reports_usage: bool = False  # whether hourly totals are kept for the home region until they are reported
    _connection: StoreConnection | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return str(self.location)

    @property
    def probe_due(self) -> float:
        return self._keeper.due

    @property
    def epochs(self) -> dict[int, int]:
        return dict(self._keeper.epochs)

    def open(self) -> StoredState:
        with explained_errors(self.location, STORE_SETTING):
            connection = self._connection = connect(self.location, self.owner)
            try:
                return self._open(connection)
            except BaseException:
                connection.close()
                raise

    def _open(self, connection: StoreConnection) -> StoredState:
        check_encoding(connection)
        migrate(connection)
        table = PostgresPartitions(connection, self.owner)
        table.register(self.address, self.lease.ttl)
        self._outcomes = BatchOutcomes(self.owner)
        events: list[StoreEvent] = []
        self._keeper = PartitionKeeper(self.owner, events.append, self.lease)
        self._keeper.look(table, time.monotonic(), time.monotonic)
        state = next((each.state for each in events if isinstance(each, Taken)), None) or table.read(())
        self.roll_up = PostgresLedgerUpkeep(
            lambda: self._connection, self.owner, self._keeper.epochs, self.retention, self.reports_usage
        )
        limit_transactions(connection, ANSWER_TIMEOUT_S)
        return state

    def notify_events(self, on_event: OnEvent) -> None:
        self._keeper.on_event = on_event

    def owner_address(self, partition: int) -> str:
        return self._keeper.addresses.get(partition, "")

    def read_uses(self) -> list[TenantUse]:
        with explained_errors(self.location, STORE_SETTING), connect(self.location, f"{self.owner}.uses") as connection:
            limit_transactions(connection, ANSWER_TIMEOUT_S)
            return read_uses(connection)

    def count_edges(self, edges: int) -> None:
        self._keeper.edges = edges

    def hand_over(self) -> None:
        """Give all partitions to other processes from now on."""
        self._keeper.drain()

    def commit(self, batch: list[PendingChange]) -> Exception | None:
        """Write a batch; an empty one renews the lease, and takes and gives partitions."""
        was_connected = not self._is_disconnected
        error = self._attempt(batch)
        if isinstance(error, psycopg.Error) and was_connected and self._is_disconnected:
            error = self._attempt(batch)  # the new connection may decide the batch at once
        if error is None:
            self.roll_up.count(batch)
        elif not isinstance(error, PartitionsLost):
            self._outcomes.on_failed()
        return error

    def _attempt(self, batch: list[PendingChange]) -> Exception | None:
        """Write what was not applied of a batch. Raises StoreDiverged."""
        try:
            connection = self._connected()
            self._outcomes.decide(connection)
            if not batch:
                self._look(connection)
            elif not self._outcomes.is_applied(batch):
                return self._transact(connection, batch)
        except psycopg.Error as error:
            if self._connection:
                roll_back(self._connection)
            return self._lost_partitions() if is_taken(error) else error
        self._count_released(batch)
        return None

    def _look(self, connection: StoreConnection) -> None:
        now = time.monotonic()
        if self.lease.has_lapsed(now):
            log.warning("partition_lease_lapsed", owner=self.owner, late_s=round(now - self.lease.expires_at, 3))
        self._keeper.look(PostgresPartitions(connection, self.owner), now, time.monotonic)

    def _transact(self, connection: StoreConnection, batch: list[PendingChange]) -> PartitionsLost | None:
        epochs = self._keeper.epochs
        concerned = {found for each in batch if (found := partition_of_change(each)) is not None}
        if not concerned <= epochs.keys():
            return PartitionsLost(frozenset(concerned - epochs.keys()))
        changes = [change for change, _ in self._outcomes.begin(batch)]
        self._outcomes.forget_partitions(self._outcomes.cancelled_partitions - epochs.keys())
        held = concerned | self._outcomes.cancelled_partitions
        head = [hold(self.owner, [(each, epochs[each]) for each in held])] if held else []
        released = [release(self.owner, each.partitions) for each in changes if isinstance(each, Release)]
        try:
            _run(
                connection,
                [
                    *head,
                    self._outcomes.begin_statement(),
                    *self._outcomes.compensation(),
                    *statements(changes, reports_usage=self.reports_usage),
                    *released,
                ],
            )
        except psycopg.Error as error:
            if is_rolled_back(error):
                self._outcomes.on_rejected()
            else:
                connection.close()  # the batch is in doubt, and the next connection decides it
            raise
        self._outcomes.on_applied()
        self._count_released(batch)
        return None

    def _count_released(self, batch: list[PendingChange]) -> None:
        for change, _ in batch:
            if isinstance(change, Release):
                self._keeper.on_released(change.partitions)

    def _lost_partitions(self) -> Exception:
        """Find out which partitions another replica has taken. Return the error of the connection if it is lost."""
        table = PostgresPartitions(self._connected(), self.owner)
        try:
            view = table.renew(self.lease.ttl, self._keeper.presence)
        except psycopg.Error as error:
            roll_back(table.connection)
            return error
        lost = self._keeper.stale(view)
        self._keeper.lose(lost)
        return PartitionsLost(frozenset(lost))

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
        # The server may have been away for all: the others renew their leases now, too.
        self._keeper.takes_lapsed_at = time.monotonic() + self.lease.ttl
        return connection

    def server_time(self) -> float | None:
        row = self._connected().execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        return row[0] if row else None

    def used_share(self) -> float:
        return 0.0  # the server's volume is not visible here

    def close(self) -> None:
        """Release the partitions, so that the next process needs not wait for the end of the lease."""
        if self._connection is None or self._connection.closed:
            return
        try:
            _run(self._connection, resign(self.owner))
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
