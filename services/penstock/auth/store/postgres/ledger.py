"""The ledger in PostgreSQL: partitions by day, which are added ahead and dropped whole, and hours that become days."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

import psycopg
import structlog

from penstock.auth.store.postgres.ownership import hold, is_taken
from penstock.auth.store.roll_up import Retention
from penstock.auth.store.store import Charged, PendingChange
from penstock.auth.store.totals import COUNTERS, DAILY_ADDITIONS, KEYS
from penstock.chassis.database.postgres import BEGIN, StoreConnection, roll_back

log = structlog.get_logger()

DAYS_AHEAD = 2  # days after the present one that have a partition
SETTLEMENT_DAYS = 1  # days by which a row may be settled after its reservation; it is kept for that much longer
UPKEEP_INTERVAL_S = 60.0  # s between two looks at the partitions
LOCK_TIMEOUT_MS = 100  # of a change of partitions, which waits for queries, and for which all others wait
STATEMENT_TIMEOUT_MS = 500  # of a part of the upkeep, so that a slow one does not delay the renewal of the lease
MAX_MOVED_ROWS = 20_000  # rows that leave the default partition with a new one
SLICE_ROWS = 1_000  # rows of the default partition that are deleted, or hourly totals that become daily, at once
UPKEEP_LOCK = 0x6C656467  # of pg_try_advisory_xact_lock: "ledg"

_DAY, _UNTIL = "ledger_day_", "ledger_until_"  # of names of partitions
_BEGIN_UPKEEP = """
    SELECT set_config('lock_timeout', %s::text, true), set_config('statement_timeout', %s::text, true),
        pg_try_advisory_xact_lock(%s)
"""
_PARTITIONS = """
    SELECT relname, greatest(reltuples, 0)::bigint FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'ledger'::regclass
"""
_ADD_DAY = "SELECT add_ledger_day(%s, %s)"
_DELETE_EXPIRED = """
    DELETE FROM ledger_default USING (
        SELECT reserved_at, reservation_id FROM ledger_default WHERE reserved_at < %s
        ORDER BY reserved_at, reservation_id LIMIT %s
    ) AS due
    WHERE ledger_default.reserved_at = due.reserved_at AND ledger_default.reservation_id = due.reservation_id
"""
_NAMES = ", ".join((*KEYS, *COUNTERS))
# One statement: a total is added to its day by the process that deletes it.
_MOVE_HOURS = f"""
    WITH due AS (
        SELECT tenant_id, hour, key_id, model, region FROM hourly_usage
        WHERE hour < %s AND NOT (is_unreported AND %s) ORDER BY hour LIMIT %s
    ),
    moved AS (
        DELETE FROM hourly_usage AS total USING due
        WHERE (total.tenant_id, total.hour, total.key_id, total.model, total.region)
            = (due.tenant_id, due.hour, due.key_id, due.model, due.region)
        RETURNING day_of(total.hour) AS day, {", ".join(f"total.{each}" for each in (*KEYS, *COUNTERS))}
    ),
    totals AS (
        INSERT INTO daily_usage (day, {_NAMES})
        SELECT day, {", ".join(KEYS)}, {", ".join(f"sum({each})" for each in COUNTERS)}
        FROM moved GROUP BY day, {", ".join(KEYS)} ORDER BY tenant_id, day, key_id, model, region
        ON CONFLICT (tenant_id, day, key_id, model, region) DO UPDATE SET {DAILY_ADDITIONS}
    )
    SELECT count(*) FROM moved
"""  # noqa: S608  # constants


@dataclass(frozen=True, slots=True)
class LedgerPartition:
    """A partition with the rows of reservations of a day, or of all days before one."""

    name: str
    day: date | None  # None: all days before `until`
    until: date

    @classmethod
    def of(cls, name: str) -> "LedgerPartition | None":
        """Return the partition of a name; None for the default partition and for those of an operator."""
        kind, digits = (_DAY, name[len(_DAY) :]) if name.startswith(_DAY) else (_UNTIL, name[len(_UNTIL) :])
        if not name.startswith(kind) or len(digits) != 8 or not digits.isdecimal():
            return None
        named = date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
        return cls(name, named, named + timedelta(days=1)) if kind == _DAY else cls(name, None, named)


def days_to_add(partitions: list[LedgerPartition], today: date) -> list[date]:
    """Return the days from `today` on that have no partition yet."""
    days = [today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]
    former = max((each.until for each in partitions if each.day is None), default=date.min)
    present = {each.day for each in partitions}
    return [each for each in days if each not in present and each >= former]


def expired_before(now: float, max_age: float) -> date:
    """Return the day before which no reservation has a row whose retention lasts."""
    days = math.ceil(min(max_age, now) / 86_400) + SETTLEMENT_DAYS
    try:
        return day_of(now) - timedelta(days=days)
    except OverflowError:
        return date.min


def day_of(now: float) -> date:
    return datetime.fromtimestamp(now, UTC).date()


UPKEEP_PARTITION = 0  # its owner keeps the whole ledger


@dataclass(eq=False)
class PostgresLedgerUpkeep:
    """Partitions and retention of the ledger. Of several processes, one at a time does a part of it.

    A day's partition is dropped when the retention of all of its rows has ended. A row whose day has no partition is in
    the default one, such as that of a lost reservation that its edge settles after the drop, and is deleted singly.
    """

    connected: Callable[[], StoreConnection | None]
    owner: str
    epochs: Mapping[int, int]  # of the partitions that this process owns at the time
    retention: Retention
    reports_usage: bool = False  # whether hourly totals stay until the home region has them
    rows: int = 0  # an estimate of the server, with what this process added
    _due: float = -math.inf  # s; time of the next look at the partitions
    _work: list[Callable[[StoreConnection], bool]] = field(default_factory=list)  # what is due, in order

    def count(self, committed: list[PendingChange]) -> None:
        self.rows += sum(isinstance(each, Charged) and not each.charge.is_correction for each, _ in committed)

    def run_slice(self, now: float) -> bool:
        if not self._work and now >= self._due:
            self._due = now + UPKEEP_INTERVAL_S
            self._work = [lambda connection: self._plan(connection, now)]
        if not self._work:
            return False
        is_done = self._transact(self._work[0])
        if is_done is None:  # for example, a query holds a lock: again at the next look
            self._work = []
        elif is_done:
            self._work.pop(0)
        return bool(self._work)

    def _plan(self, connection: StoreConnection, now: float) -> bool:
        """Find what is due. It does not wait for what the server does, which another process may do meanwhile."""
        found = connection.execute(_PARTITIONS).fetchall()
        self.rows = sum(count for _, count in found)
        partitions = [each for name, _ in found if (each := LedgerPartition.of(name))]
        before = expired_before(now, self.retention.max_age)
        self._work += [_adding(each) for each in days_to_add(partitions, day_of(now))]
        self._work += [_dropping(each) for each in partitions if each.until <= before]
        self._work.append(_deleting(now - self.retention.max_age - SETTLEMENT_DAYS * 86_400))
        self._work.append(_moving(now - self.retention.max_hour_age, keeps_unreported=self.reports_usage))
        return True

    def _transact(self, work: Callable[[StoreConnection], bool]) -> bool | None:
        """Run `work` in one transaction. Return its result; None if it failed and nothing has changed."""
        connection, epoch = self.connected(), self.epochs.get(UPKEEP_PARTITION)
        if connection is None or connection.closed or epoch is None:
            return None
        try:
            connection.execute(BEGIN)
            connection.execute(*hold(self.owner, [(UPKEEP_PARTITION, epoch)]))
            row = connection.execute(_BEGIN_UPKEEP, (LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, UPKEEP_LOCK)).fetchone()
            result = work(connection) if row and row[-1] else None
            connection.execute("COMMIT")
        except psycopg.Error as error:
            roll_back(connection)
            is_taken(error)  # the next look finds out which partitions were taken
            log.info("ledger_upkeep_delayed", error=" ".join(str(error).split()))
            return None
        return result


def _adding(day: date) -> Callable[[StoreConnection], bool]:
    def add(connection: StoreConnection) -> bool:
        row = connection.execute(_ADD_DAY, (day, MAX_MOVED_ROWS)).fetchone()
        if row and not row[0]:
            log.warning("ledger_day_not_added", day=day.isoformat(), default_rows_above=MAX_MOVED_ROWS)
        return True

    return add


def _dropping(partition: LedgerPartition) -> Callable[[StoreConnection], bool]:
    def drop(connection: StoreConnection) -> bool:
        connection.execute(f'DROP TABLE IF EXISTS "{partition.name}"')
        log.info("ledger_partition_dropped", partition=partition.name)
        return True

    return drop


def _deleting(before: float) -> Callable[[StoreConnection], bool]:
    return lambda connection: connection.execute(_DELETE_EXPIRED, (before, SLICE_ROWS)).rowcount < SLICE_ROWS


def _moving(before: float, *, keeps_unreported: bool) -> Callable[[StoreConnection], bool]:
    def move(connection: StoreConnection) -> bool:
        row = connection.execute(_MOVE_HOURS, (before, keeps_unreported, SLICE_ROWS)).fetchone()
        return row is None or int(row[0]) < SLICE_ROWS

    return move
