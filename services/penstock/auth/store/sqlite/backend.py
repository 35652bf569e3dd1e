"""The SQLite backend: one file, opened by one process at a time."""

import math
import sqlite3
from dataclasses import dataclass, field

from penstock.auth.store.disk_usage import used_share
from penstock.auth.store.roll_up import LedgerRollUp, Retention
from penstock.auth.store.sqlite import sql
from penstock.auth.store.sqlite.connection import commit, connect
from penstock.auth.store.sqlite.ledger import SqliteLedger
from penstock.auth.store.store import HandedOver, OnEvent, PendingChange, StoredState, TenantUse
from penstock.chassis.database.sqlite import explained_errors


@dataclass(eq=False)
class SqliteBackend:
    """A file. With `fsync`, a commit also survives the loss of power.

    With `reports_usage`, hourly totals are kept for the home region until they are reported.
    """

    path: str
    retention: Retention
    fsync: bool = field(default=False, kw_only=True)
    reports_usage: bool = field(default=False, kw_only=True)
    probe_due: float = field(default=math.inf, init=False)  # no other process can take the file over
    epochs: None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return self.path

    def open(self) -> StoredState:
        with explained_errors(self.path):
            self._connection = connect(self.path, fsync=self.fsync)
            state = sql.read(self._connection)
        self.roll_up = LedgerRollUp(SqliteLedger(self._connection, self.reports_usage), self.retention)
        return state

    def notify_events(self, on_event: OnEvent) -> None:
        self._on_event = on_event

    def owner_address(self, partition: int) -> str:
        return ""  # it is this process

    def read_uses(self) -> list[TenantUse]:
        return []  # this process knows all

    def count_edges(self, edges: int) -> None:
        """No other process takes part."""

    def hand_over(self) -> None:
        self._on_event(HandedOver())

    def commit(self, batch: list[PendingChange]) -> sqlite3.Error | None:
        error = commit(self._connection, batch, reports_usage=self.reports_usage)
        if error is None:
            self.roll_up.count(batch)
        return error

    def server_time(self) -> None:
        return None

    def used_share(self) -> float:
        return used_share(self.path)

    def close(self) -> None:
        self._connection.close()
