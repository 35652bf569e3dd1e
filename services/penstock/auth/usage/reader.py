"""The usage reader: runs queries in threads of their own, a few at a time, each with a limit."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from penstock.auth.store.rows import Row
from penstock.auth.store.totals import RegionTotal
from penstock.auth.store.usage_connection import Connect, QueryFailed, QueryTimeout, UsageConnection
from penstock.auth.usage.connections import usage_connections
from penstock.auth.usage.query import (
    POSTGRES,
    SQLITE,
    ExportPages,
    UsageFilter,
    UsageQuery,
    Values,
    reported_regions_statement,
    totals_statement,
    unreported_statement,
)
from penstock.chassis.database.location import StoreLocation
from penstock.chassis.errors import DeadlineExceeded, FailedPrecondition, Overloaded, Unavailable

MAX_QUERIES = 4  # at a time
MAX_QUERY_S = 60.0  # s; of one statement
CANCEL_INTERVAL_S = 0.1
PAGE_ROWS = 5_000  # rows of the ledger that are in memory at a time, per export


class _Job:
    """One statement in a thread, which another thread may cancel."""

    def __init__(self, connect: Connect, timeout: float, statement: str, values: Values) -> None:
        self._connect, self._timeout, self._statement, self._values = connect, timeout, statement, values
        self._connection: UsageConnection | None = None
        self._is_cancelled = False
        self._has_ended = threading.Event()

    def run(self) -> list[Row]:
        connection = self._connection = self._connect(self._timeout)
        try:
            return [] if self._is_cancelled else connection.rows(self._statement, self._values)
        finally:
            self._connection = None
            self._has_ended.set()
            connection.close()

    def cancel(self) -> None:
        """Cancel the statement until it has ended: a store ignores a cancel that arrives before its statement."""
        self._is_cancelled = True
        while connection := self._connection:
            connection.cancel()
            self._has_ended.wait(CANCEL_INTERVAL_S)


@dataclass(eq=False)
class UsageReader:
    """Reads usage from the store of this process. It needs no more of the store than its location."""

    location: StoreLocation
    _connect: Connect | None = field(init=False)

    def __post_init__(self) -> None:
        self._connect = usage_connections(self.location)
        self._dialect = POSTGRES if self.location.is_postgres else SQLITE
        self._slots = asyncio.Semaphore(MAX_QUERIES)
        self._threads = ThreadPoolExecutor(MAX_QUERIES + 1, "auth-usage")  # one more, which cancels

    def close(self) -> None:
        """End when the running statements do, which their callers have cancelled."""
        self._threads.shutdown(wait=False)

    async def query(self, query: UsageQuery, timeout: float = MAX_QUERY_S) -> tuple[list[Row], bool]:
        """Return rows with the groups and the counters, and whether there are more. Raises PenstockError."""
        self._check()
        rows = await self._run(*totals_statement(query, self._dialect), timeout)
        return rows[: query.limit], len(rows) > query.limit

    async def unreported(self, region: str, until: float, limit: int) -> list[RegionTotal]:
        """Return the oldest totals of a region, up to the hour of `until`, that are not confirmed.

        Raises PenstockError.
        """
        self._check()
        rows = await self._run(*unreported_statement(region, until, limit, self._dialect), MAX_QUERY_S)
        return [
            RegionTotal(hour, tenant_id, key_id, model, tuple(counters), revision)
            for hour, tenant_id, key_id, model, *counters, revision in rows
        ]

    async def reported_regions(self, chosen: UsageFilter, region: str, timeout: float) -> dict[str, int]:
        """Return how many requests other regions have reported, by region. Raises PenstockError."""
        self._check()
        rows = await self._run(*reported_regions_statement(chosen, region, self._dialect), timeout)
        return {name: int(requests) for name, requests in rows}

    async def export(self, chosen: UsageFilter) -> AsyncGenerator[list[Row], None]:
        """Yield the rows of the ledger page by page, in the order of `EXPORT_COLUMNS`. Raises PenstockError."""
        self._check()
        pages = ExportPages(chosen, self._dialect, PAGE_ROWS)
        while not pages.is_done:
            rows = await self._run(*pages.statement(), MAX_QUERY_S)
            pages.on_page(rows)
            if rows:
                yield rows

    def _check(self) -> None:
        if self._connect is None:
            text = "usage in memory cannot be queried; set PENSTOCK_AUTH_STORE to a file or a PostgreSQL database"
            raise FailedPrecondition(text, reason="STORE_IN_MEMORY")
        if self._slots.locked():
            text = f"{MAX_QUERIES} queries of usage are running; wait for one of them"
            raise Overloaded(text, reason="TOO_MANY_QUERIES", retry_after=1.0)

    async def _run(self, statement: str, values: Values, timeout: float) -> list[Row]:
        assert self._connect is not None, "checked before"
        if timeout <= 0:
            raise DeadlineExceeded("the deadline has passed before the query began", reason="QUERY_TIMEOUT")
        await self._slots.acquire()
        job, loop = _Job(self._connect, timeout, statement, values), asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, job.run)
        running.add_done_callback(self._on_done)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            loop.run_in_executor(self._threads, job.cancel)
            raise
        except QueryTimeout:
            text = f"the query took longer than {timeout:.0f} s; ask for a shorter time, or for one tenant"
            raise DeadlineExceeded(text, reason="QUERY_TIMEOUT") from None
        except QueryFailed as error:
            text = f"the store of auth cannot be read now ({error}); try again"
            raise Unavailable(text, reason="STORE_UNAVAILABLE", retry_after=1.0) from None

    def _on_done(self, running: "asyncio.Future[list[Row]]") -> None:
        self._slots.release()
        if not running.cancelled():
            running.exception()  # also of a cancelled query, whose error is not of interest
