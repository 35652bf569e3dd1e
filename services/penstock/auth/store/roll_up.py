"""Roll-up: retention of the ledger and of hourly totals, in slices of a few milliseconds.

Every charge is counted in an hourly total when its row is written, so that the ledger only loses rows. Hourly totals
that are old become totals of their day.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.auth.quota.answer_billing import MAX_ANSWERS
from penstock.auth.quota.reservation_table import MAX_LOST_RESERVATIONS
from penstock.auth.store.store import Charged, PendingChange

SLICE_ROWS = (16, 128)  # range; the first slice has the fewest rows
SLICE_TARGET_S = 0.008  # s; a slice that took longer is followed by one of half the size. 128 rows take 1 ms of CPU
SLICE_INTERVAL_S = 0.05  # s between slices while rows are due
CORRECTION_MARGIN_S = 4 * 86_400.0  # s by which a row of the ledger may outlive its retention
MIN_LEDGER_ROWS = MAX_ANSWERS  # rows that a restart reads


class LedgerUpkeep(Protocol):
    """Keeps the ledger of a database within its retention. All methods run in the store's thread."""

    rows: int  # of the ledger; may be an estimate

    def count(self, committed: list[PendingChange]) -> None:
        """Count the new rows of a committed batch. A correction replaces a row."""

    def run_slice(self, now: float) -> bool:
        """Do a part of what is due, in a transaction of its own. Return whether more may be due."""


class Ledger(Protocol):
    """The ledger in one database. A row is due in the order (settled_at, reservation_id)."""

    def count_rows(self) -> int: ...

    def transact(self, work: Callable[[], int]) -> int | None:
        """Run `work` in one transaction. Return its result; None if it failed and nothing has changed."""

    def newest_lost(self, skip: int) -> float | None:
        """Return `settled_at` of a lost row after the `skip` newest ones; None if there are fewer."""

    def delete(self, *, lost: bool, before: float, count: int) -> int:
        """Delete the first `count` lost, or other, rows that are older than `before`. Return their number."""

    def move_hours(self, *, before: float, count: int) -> int:
        """Move the first `count` hourly totals that are older than `before` to daily ones. Return their number."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long, and how many, rows of the ledger are kept, and for how long usage is kept by hour."""

    max_age: float = math.inf  # s
    max_rows: int = 2**62  # of SQLite alone
    max_hour_age: float = math.inf  # s; older hourly totals become daily totals


KEEP_ALL = Retention()


def correctable_hours(retention: Retention) -> Retention:
    """Return a retention with which no charge can change an hour that has become a day.

    A charge changes its own hour and, if it corrects a lost row of the ledger, the hour of that row.
    """
    return replace(retention, max_hour_age=max(retention.max_hour_age, retention.max_age + CORRECTION_MARGIN_S))


@dataclass(eq=False)
class LedgerRollUp:
    """Applies the retention by slices. Lost rows that an edge may still settle are kept, regardless of their number."""

    ledger: Ledger
    retention: Retention
    rows: int = 0
    slice_rows: int = SLICE_ROWS[0]
    most_slice_rows: int = SLICE_ROWS[1]
    slice_target: float = SLICE_TARGET_S
    timer: Callable[[], float] = field(default=time.perf_counter)

    def __post_init__(self) -> None:
        self.rows = self.ledger.count_rows()

    def count(self, committed: list[PendingChange]) -> None:
        """Count the new rows of a committed batch. A correction replaces a row."""
        self.rows += sum(isinstance(each, Charged) and not each.charge.is_correction for each, _ in committed)

    def run_slice(self, now: float) -> bool:
        """Move one slice in a transaction of its own. Return whether more rows may be due."""
        began = self.timer()
        deleted = self.ledger.transact(lambda: self._delete_slice(now))
        if deleted is None:  # the next commit of changes reports the error
            return False
        self.rows -= deleted
        moved = deleted or self.ledger.transact(lambda: self._move_hours(now)) or 0
        is_full = moved >= self.slice_rows
        self._adapt(self.timer() - began, is_full=is_full)
        return is_full

    def _move_hours(self, now: float) -> int:
        return self.ledger.move_hours(before=now - self.retention.max_hour_age, count=self.slice_rows)

    def _delete_slice(self, now: float) -> int:
        excess, expired = self.rows - self.retention.max_rows, now - self.retention.max_age
        deleted = 0
        if excess >= SLICE_ROWS[0]:
            deleted = self.ledger.delete(lost=False, before=math.inf, count=min(excess, self.slice_rows))
        deleted = deleted or self.ledger.delete(lost=False, before=expired, count=self.slice_rows)
        return deleted or self._delete_lost(expired)

    def _delete_lost(self, expired: float) -> int:
        oldest_kept = self.ledger.newest_lost(MAX_LOST_RESERVATIONS)
        before = expired if oldest_kept is None else max(expired, oldest_kept)
        return self.ledger.delete(lost=True, before=before, count=self.slice_rows)

    def _adapt(self, took: float, *, is_full: bool) -> None:
        low, high = SLICE_ROWS[0], self.most_slice_rows
        if took > self.slice_target:
            self.slice_rows = max(low, self.slice_rows // 2)
        elif is_full and took < self.slice_target / 4:
            self.slice_rows = min(high, self.slice_rows * 2)
