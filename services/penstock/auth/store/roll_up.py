"""Roll-up: rows of the ledger that are too old or too many become daily totals, in slices of a few milliseconds."""

import math
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.auth.quota.answer_billing import MAX_ANSWERS
from penstock.auth.quota.reservation_table import MAX_LOST_RESERVATIONS
from penstock.auth.store.store import Charged, PendingChange

SLICE_ROWS = (16, 128)  # range; the first slice has the fewest rows
SLICE_TARGET_S = 0.008  # s; a slice that took longer is followed by one of half the size. 128 rows take 1 ms of CPU
SLICE_INTERVAL_S = 0.05  # s between slices while rows are due
MIN_LEDGER_ROWS = MAX_ANSWERS  # rows that a restart reads

# A row is due in the order (settled_at, reservation_id), which is also the order of both indexes.
_TOTALS = """
    INSERT INTO daily_usage
    SELECT date(settled_at, 'unixepoch'), tenant_id, key_id, model, count(*), sum(prompt_tokens), sum(output_tokens)
    FROM ledger INDEXED BY {index} WHERE {rows} GROUP BY 1, 2, 3, 4
    ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,
        prompt_tokens = prompt_tokens + excluded.prompt_tokens, output_tokens = output_tokens + excluded.output_tokens
"""
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
    """The rows of one partial index of the ledger, and the statements that move a slice of them."""

    index: str
    condition: str

    def last_of_slice(self, connection: sqlite3.Connection, before: float, count: int) -> tuple[float, str] | None:
        """Return the key of the row that ends a slice of `count` rows older than `before`; None if there are fewer."""
        statement = _LAST_OF_SLICE.format(index=self.index, rows=f"{self.condition} AND settled_at < ?")
        row: tuple[float, str] | None = connection.execute(statement, (before, count - 1)).fetchone()
        return row

    def move(self, connection: sqlite3.Connection, before: float, last: tuple[float, str] | None) -> int:
        """Move the rows up to `last`, or all that are older than `before`. Return their number."""
        bound = "(settled_at, reservation_id) <= (?, ?)" if last else "settled_at < ?"
        rows, values = f"{self.condition} AND {bound}", last or (before,)
        connection.execute(_TOTALS.format(index=self.index, rows=rows), values)
        delete = f"DELETE FROM ledger INDEXED BY {self.index} WHERE {rows}"  # noqa: S608  # constants
        return connection.execute(delete, values).rowcount


_SETTLED = _Rows("ledger_settled", "outcome != 'lost'")
_LOST = _Rows("ledger_lost", "outcome = 'lost'")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long, and how many, rows of the ledger are kept before they become daily totals."""

    max_age: float = math.inf  # s
    max_rows: int = 2**62


KEEP_ALL = Retention()


@dataclass(eq=False)
class LedgerRollUp:
    """Rolls the ledger up by slices. Lost rows that an edge may still settle are kept, regardless of their number.

    Every charge is counted once: in its row, or in the total of its tenant, key, model and day (UTC).
    """

    connection: sqlite3.Connection
    retention: Retention
    rows: int = 0
    slice_rows: int = SLICE_ROWS[0]
    timer: Callable[[], float] = field(default=time.perf_counter)

    def __post_init__(self) -> None:
        (self.rows,) = self.connection.execute("SELECT count(*) FROM ledger").fetchone()

    def count(self, committed: list[PendingChange]) -> None:
        """Count the new rows of a committed batch. A correction replaces a row."""
        self.rows += sum(isinstance(each, Charged) and not each.charge.is_correction for each, _ in committed)

    def run_slice(self, now: float) -> bool:
        """Move one slice in a transaction of its own. Return whether more rows may be due."""
        began = self.timer()
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            moved = self._move_slice(now)
            self.connection.execute("COMMIT")
        except sqlite3.Error:  # the next commit of changes reports it
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            return False
        self.rows -= moved
        is_full = moved >= self.slice_rows
        self._adapt(self.timer() - began, is_full=is_full)
        return is_full

    def _move_slice(self, now: float) -> int:
        excess, expired = self.rows - self.retention.max_rows, now - self.retention.max_age
        moved = 0
        if excess >= SLICE_ROWS[0]:
            moved = self._move(_SETTLED, math.inf, min(excess, self.slice_rows))
        return moved or self._move(_SETTLED, expired, self.slice_rows) or self._move_lost(expired)

    def _move_lost(self, expired: float) -> int:
        oldest_kept = self.connection.execute(_NEWEST_LOST, (MAX_LOST_RESERVATIONS,)).fetchone()
        return self._move(_LOST, max(expired, oldest_kept[0] if oldest_kept else -math.inf), self.slice_rows)

    def _move(self, rows: _Rows, before: float, count: int) -> int:
        return rows.move(self.connection, before, rows.last_of_slice(self.connection, before, count))

    def _adapt(self, took: float, *, is_full: bool) -> None:
        low, high = SLICE_ROWS
        if took > SLICE_TARGET_S:
            self.slice_rows = max(low, self.slice_rows // 2)
        elif is_full and took < SLICE_TARGET_S / 4:
            self.slice_rows = min(high, self.slice_rows * 2)
