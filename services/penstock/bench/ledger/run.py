"""The benchmark of the ledger: fills a month of rows, reads months of tenants, and settles beside them."""

import random
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from penstock.auth.store.postgres.ledger import day_of
from penstock.auth.store.postgres.ledger_rows import COUNT_ROWS, LEDGER_COLUMNS
from penstock.auth.store.postgres.schema import migrate
from penstock.auth.store.totals import DAY_S
from penstock.auth.usage.query import UsageFilter, UsageQuery
from penstock.auth.usage.reader import UsageReader
from penstock.bench.ledger.rows import LedgerPlan, day_blocks
from penstock.bench.progress import ProgressFn
from penstock.bench.statistics import distribution
from penstock.chassis.database.location import parse_location

QUERY_TENANTS = 20  # tenants whose month is read, by model and by day
Figures = dict[str, Any]


@contextmanager
def new_schema(url: str) -> Iterator[str]:
    """Yield the URL of a new schema of the database, so that its other tables are not touched."""
    name = f"penstock_bench_{secrets.token_hex(4)}"
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    try:
        yield f"{url}{'&' if '?' in url else '?'}options={quote(f'-csearch_path={name}')}"
    finally:
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def month_start(plan: LedgerPlan, now: float) -> float:
    """Return the begin of the month, whose last day is the present one."""
    return float((int(now) // DAY_S - plan.days + 1) * DAY_S)


def fill(url: str, plan: LedgerPlan, start: float, report: ProgressFn) -> Figures:
    """Write the rows with COPY, and count them in the totals."""
    began, written = time.perf_counter(), 0
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        migrate(connection)
        copy = sql.SQL("COPY ledger ({}) FROM STDIN").format(sql.SQL(", ").join(map(sql.Identifier, LEDGER_COLUMNS)))
        for day in range(plan.days):
            at = start + day * DAY_S
            connection.execute("SELECT add_ledger_day(%s, 0)", (day_of(at),))
            with connection.cursor().copy(copy) as rows:
                for block in day_blocks(plan, day, at):
                    rows.write(block)
                    written += block.count("\n")
                    report(f"ledger: {written:,} of {plan.rows:,} rows")
        filled = time.perf_counter()
        for day in range(plan.days):
            report(f"totals: day {day + 1} of {plan.days}")
            connection.execute(COUNT_ROWS.encode(), (start + day * DAY_S, start + (day + 1) * DAY_S))
        counted = time.perf_counter()
        report("vacuum")
        connection.execute("VACUUM (ANALYZE) ledger, hourly_usage")
        sizes = connection.execute(_SIZES).fetchone() or (0, 0, 0)
    names = ("ledger_bytes", "hourly_totals", "totals_bytes")
    seconds = {"copy_s": filled - began, "count_s": counted - filled}
    return {"rows": plan.rows, **seconds, **dict(zip(names, map(int, sizes), strict=True))}


_SIZES = """
    SELECT (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'ledger'::regclass),
        (SELECT count(*) FROM hourly_usage), pg_total_relation_size('hourly_usage')
"""


@dataclass(frozen=True, slots=True)
class MonthQueries:
    """Reads the month of some tenants, as `Admin.QueryUsage` does, each with a connection of its own."""

    url: str
    plan: LedgerPlan
    start: float

    async def measure(self, report: ProgressFn) -> Figures:
        times: dict[str, list[float]] = {"model": [], "day": []}
        rng = random.Random(self.plan.seed)  # not for a secret
        async with _reader(self.url) as reader:
            for number in range(min(QUERY_TENANTS, self.plan.tenants)):
                report(f"queries: tenant {number + 1}")
                tenant = self.plan.tenant(rng.randrange(self.plan.keys))
                for group, taken in times.items():
                    taken.append(await self._timed(reader, tenant, group))
        return {f"month_by_{group}_s": distribution(taken) for group, taken in times.items()}

    async def _timed(self, reader: UsageReader, tenant: str, group: str) -> float:
        month = UsageFilter(start=self.start, end=self.start + self.plan.days * DAY_S, tenant_id=tenant)
        began = time.perf_counter()
        await reader.query(UsageQuery(filter=month, groups=(group,)))
        return time.perf_counter() - began


@asynccontextmanager
async def _reader(url: str) -> AsyncIterator[UsageReader]:
    reader = UsageReader(parse_location(url))
    try:
        yield reader
    finally:
        reader.close()
