"""The ledger in SQLite: deletes rows whose retention has ended. Hourly totals have them since they were written."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from penstock.auth.store.sqlite.hourly_usage import move_hours

# Both indexes have the order (settled_at, reservation_id).
_LAST_OF_SLICE = """
    SELECT settled_at, reservation_id FROM ledger INDEXED BY {index} WHERE {rows}
    ORDER BY settled_at, reservation_id LIMIT 1 OFFSET ?
"""
_NEWEST_LOST = """
    SELECT settled_at FROM ledger INDEXED BY ledger_lost WHERE outcome = 'lost'
    ORDER BY settled_at DESC LIMIT 1 OFFSET ?
"""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one partial index of the ledger, and the statements that delete a slice of them."""

    index: str
    condition: str

    def last_of_slice(self, connection: sqlite3.Connection, before: float, count: int) -> tuple[float, str] | None:
        """Return the key of the row that ends a slice of `count` rows older than `before`; None if there are fewer."""
        statement = _LAST_OF_SLICE.format(index=self.index, rows=f"{self.condition} AND settled_at < ?")
        row: tuple[float, str] | None = connection.execute(statement, (before, count - 1)).fetchone()
        return row

    def delete(self, connection: sqlite3.Connection, before: float, last: tuple[float, str] | None) -> int:
        """Delete the rows up to `last`, or all that are older than `before`. Return their number."""
        bound = "(settled_at, reservation_id) <= (?, ?)" if last else "settled_at < ?"
        rows, values = f"{self.condition} AND {bound}", last or (before,)
        delete = f"DELETE FROM ledger INDEXED BY {self.index} WHERE {rows}"  # noqa: S608  # constants
        return connection.execute(delete, values).rowcount


_SETTLED = _Rows("ledger_settled", "outcome != 'lost'")
_LOST = _Rows("ledger_lost", "outcome = 'lost'")


@dataclass(frozen=True, slots=True)
class SqliteLedger:
    """The ledger of an open file."""

    connection: sqlite3.Connection
    reports_usage: bool = False  # whether hourly totals stay until the home region has them

    def count_rows(self) -> int:
        count: int = self.connection.execute("SELECT count(*) FROM ledger").fetchone()[0]
        return count

    def transact(self, work: Callable[[], int]) -> int | None:
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            result = work()
            self.connection.execute("COMMIT")
        except sqlite3.Error:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            return None
        return result

    def newest_lost(self, skip: int) -> float | None:
        row = self.connection.execute(_NEWEST_LOST, (skip,)).fetchone()
        return row[0] if row else None

    def delete(self, *, lost: bool, before: float, count: int) -> int:
        rows = _LOST if lost else _SETTLED
        return rows.delete(self.connection, before, rows.last_of_slice(self.connection, before, count))

    def move_hours(self, *, before: float, count: int) -> int:
        return move_hours(self.connection, before, count, keeps_unreported=self.reports_usage)
