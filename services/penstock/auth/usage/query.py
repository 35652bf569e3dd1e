"""Queries of usage, and their SQL for each kind of store. No I/O."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from penstock.auth.store.totals import COUNTERS, DAY_S, HOUR_S, KEYS

DEFAULT_LIMIT, MAX_LIMIT = 10_000, 100_000  # rows
MAX_UNIX_S = 2.0**32  # s; of a range's end
FAR_S = 129_600.0  # s; a row that was settled later than this after its reservation is found over another index
Values = dict[str, object]


class Dialect(NamedTuple):
    """What differs in the SQL of the stores."""

    parameter: Callable[[str], str]
    day_start: str  # Unix time at which `day` of a daily total begins
    day_type: str  # cast of a parameter that is compared with `day`


SQLITE = Dialect(lambda name: f":{name}", "CAST(strftime('%s', day) AS INTEGER)", "")
POSTGRES = Dialect(lambda name: f"%({name})s", "extract(epoch FROM day)::bigint", "::date")

_GROUPS = {
    "tenant_id": "tenant_id",
    "key_id": "key_id",
    "model": "model",
    "region": "region",
    "day": f"start / {DAY_S} * {DAY_S}",
    "hour": "start",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """Which usage is read: settled from `start` on and before `end`, in Unix s. Empty names select all."""

    start: float
    end: float
    tenant_id: str = ""
    key_id: str = ""
    model: str = ""

    @property
    def names(self) -> Values:
        names = (("tenant_id", self.tenant_id), ("key_id", self.key_id), ("model", self.model))
        return {name: value for name, value in names if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageQuery:
    """Usage by groups: attributes of `_GROUPS`, at most one of them a time."""

    filter: UsageFilter
    groups: tuple[str, ...] = ()
    limit: int = DEFAULT_LIMIT


def _conditions(chosen: UsageFilter, dialect: Dialect) -> str:
    return "".join(f" AND {name} = {dialect.parameter(name)}" for name in chosen.names)


# ruff: noqa: S608  # all parts of the statements are constants
def totals_statement(query: UsageQuery, dialect: Dialect) -> tuple[str, Values]:
    """Return the statement of a query. Its rows have the groups and then the counters; one more than the limit."""
    chosen, named = query.filter, _conditions(query.filter, dialect)
    parameter, columns = dialect.parameter, ", ".join((*KEYS, *COUNTERS))
    groups = [_GROUPS[each] for each in query.groups]
    grouped = f"GROUP BY {', '.join(groups)} ORDER BY {', '.join(groups)}" if groups else ""
    statement = f"""
        SELECT {", ".join([*groups, *(f"sum({each})" for each in COUNTERS)])} FROM (
            SELECT hour AS start, {columns} FROM hourly_usage
            WHERE hour >= {parameter("start")} AND hour < {parameter("end")}{named}
            UNION ALL
            SELECT {dialect.day_start} AS start, {columns} FROM daily_usage
            WHERE day >= {parameter("start_day")}{dialect.day_type} AND day < {parameter("end_day")}{dialect.day_type}
                {named}
        ) AS totals {grouped} LIMIT {parameter("row_limit")}
    """
    times = {"start": math.ceil(chosen.start), "end": math.ceil(chosen.end)}
    days = {"start_day": _first_day(chosen.start), "end_day": _first_day(chosen.end)}
    return statement, {**times, **days, **chosen.names, "row_limit": query.limit + 1}


def _first_day(at: float) -> str:
    """Return the first day that does not begin before a time."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(days=math.ceil(at / DAY_S))).date().isoformat()


def unreported_statement(region: str, until: float, limit: int, dialect: Dialect) -> tuple[str, Values]:
    """Return the statement of the oldest totals of a region that the home region has not confirmed."""
    parameter = dialect.parameter
    statement = f"""
        SELECT hour, tenant_id, key_id, model, {", ".join(COUNTERS)}, revision FROM hourly_usage
        WHERE is_unreported AND region = {parameter("region")} AND hour <= {parameter("until")}
        ORDER BY hour LIMIT {parameter("row_limit")}
    """
    return statement, {"region": region, "until": int(until), "row_limit": limit}


def reported_regions_statement(chosen: UsageFilter, region: str, dialect: Dialect) -> tuple[str, Values]:
    """Return the statement of the requests that other regions have reported, by region."""
    parameter = dialect.parameter
    statement = f"""
        SELECT region, sum(requests) FROM hourly_usage
        WHERE hour >= {parameter("start")} AND hour < {parameter("end")} AND revision > 0
            AND region <> {parameter("own_region")}{_conditions(chosen, dialect)}
        GROUP BY region ORDER BY region
    """
    times = {"start": int(chosen.start // HOUR_S) * HOUR_S, "end": math.ceil(chosen.end)}
    return statement, {**times, **chosen.names, "own_region": region}


EXPORT_COLUMNS = (
    *("reservation_id", "request_id", "tenant_id", "key_id", "model", "region", "edge_id", "worker", "answer_id"),
    *("reserved_at", "settled_at", "prompt_tokens", "cached_tokens", "output_tokens", "price_nanos", "outcome"),
    "priority",
)
_RESERVED_AT = EXPORT_COLUMNS.index("reserved_at")
PageStatement = tuple[str, Values]


class ExportPages:
    """The statements that read the rows of a range page by page, each row once. Each continues after the former page.

    SQLite reads its table in the order of its key. PostgreSQL reads the days of the range in the order of theirs, and
    before that the few rows that were settled long after their reservation, over the index of settlement.
    """

    def __init__(self, chosen: UsageFilter, dialect: Dialect, page_rows: int) -> None:
        self._filter, self._dialect, self._page_rows = chosen, dialect, page_rows
        self._is_postgres = dialect is POSTGRES
        self._is_far = self._is_postgres
        self._after: tuple[float, str] = (-math.inf, "")
        self.is_done = False

    def statement(self) -> PageStatement:
        near = self._filter.start - FAR_S
        reserved_at, reservation_id = self._after
        values = {"start": self._filter.start, "end": self._filter.end, **self._filter.names}
        values |= {"reservation_id": reservation_id, "page_rows": self._page_rows}
        if not self._is_postgres:
            return self._sqlite(), values
        values |= {"near": near, "after": reserved_at if self._is_far else max(reserved_at, near)}
        values |= {"latest": self._filter.end + DAY_S}
        return self._far() if self._is_far else self._near(), values

    def on_page(self, rows: list[tuple[object, ...]]) -> None:
        """Continue after a page."""
        if len(rows) == self._page_rows:
            self._after = (float(str(rows[-1][_RESERVED_AT])), str(rows[-1][0]))
        elif self._is_far:
            self._is_far, self._after = False, (-math.inf, "")
        else:
            self.is_done = True

    def _sqlite(self) -> str:
        return f"""
            SELECT {", ".join(EXPORT_COLUMNS)} FROM ledger
            WHERE reservation_id > :reservation_id AND settled_at >= :start AND settled_at < :end
                {_conditions(self._filter, self._dialect)}
            ORDER BY reservation_id LIMIT :page_rows
        """

    def _near(self) -> str:
        return f"""
            SELECT {", ".join(EXPORT_COLUMNS)} FROM ledger
            WHERE reserved_at >= %(after)s AND reserved_at < %(latest)s
                AND (reserved_at, reservation_id) > (%(after)s, %(reservation_id)s)
                AND settled_at >= %(start)s AND settled_at < %(end)s {_conditions(self._filter, self._dialect)}
            ORDER BY reserved_at, reservation_id LIMIT %(page_rows)s
        """

    def _far(self) -> str:
        found = " UNION ALL ".join(
            f"""
            SELECT {", ".join(EXPORT_COLUMNS)} FROM ledger
            WHERE partition = owned.number AND {condition} AND settled_at >= %(start)s AND settled_at < %(end)s
                AND reserved_at < %(near)s AND (reserved_at, reservation_id) > (%(after)s, %(reservation_id)s)
                {_conditions(self._filter, self._dialect)}
            """
            for condition in ("outcome = 'lost'", "outcome <> 'lost'")
        )
        return f"""
            SELECT found.* FROM generate_series(0, 63) AS owned (number) CROSS JOIN LATERAL ({found}) AS found
            ORDER BY reserved_at, reservation_id LIMIT %(page_rows)s
        """
