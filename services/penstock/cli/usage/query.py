"""`penstock usage`: totals of usage as a table, CSV or JSON."""

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TextIO

from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table

from penstock.bench.tables import new_table
from penstock.cli.admin import AdminTarget
from penstock.cli.tables import stderr_console, stdout_console
from penstock.v1 import admin_pb2 as pb

QUERY_TIMEOUT_S = 60.0  # s
COUNTERS = (
    *("requests", "prompt_tokens", "cached_tokens", "output_tokens", "price_nanos"),
    *("completed", "cancelled", "shed", "failed", "lost"),
)
_TITLES = {"prompt_tokens": "prompt", "cached_tokens": "cached", "output_tokens": "output", "price_nanos": "price"}
_FIELDS = {"tenant": "tenant_id", "key": "key_id", "day": "start_time", "hour": "start_time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions:
    """What is shown, and how."""

    groups: tuple[str, ...]
    filter: pb.UsageFilter
    limit: int
    as_csv: bool = False


async def show_usage(target: AdminTarget, options: UsageOptions) -> None:
    rows, is_truncated = await _query(target, options)
    if target.as_json:
        stdout_console.print_json(data=[_record(options.groups, row) for row in rows])
    elif options.as_csv:
        write_csv(sys.stdout, options.groups, rows)
    else:
        stdout_console.print(usage_table(options.groups, rows))
    if is_truncated:
        stderr_console.print(f"there are more than {len(rows)} rows: raise --limit, or ask for a shorter time")


async def _query(target: AdminTarget, options: UsageOptions) -> tuple[list[pb.UsageRow], bool]:
    groups = [pb.UsageGroup.Value(f"USAGE_GROUP_{each.upper()}") for each in options.groups]
    request = pb.QueryUsageRequest(filter=options.filter, groups=groups, limit=options.limit)
    rows: list[pb.UsageRow] = []
    is_truncated = False
    async with target.stub() as admin:
        async for part in admin.QueryUsage(request, metadata=target.metadata, timeout=QUERY_TIMEOUT_S):
            rows += part.rows
            is_truncated = part.truncated
    return rows, is_truncated


def usage_table(groups: Sequence[str], rows: Sequence[pb.UsageRow]) -> Table:
    """Return a table with a line of totals. It has a price if any row has one."""
    shown = [each for each in COUNTERS if each != "price_nanos" or any(row.price_nanos for row in rows)]
    table = new_table(*groups, numbers=[_TITLES.get(each, each) for each in shown])
    for row in rows:
        table.add_row(*_names(groups, row), *(_shown(each, getattr(row, each)) for each in shown))
    if groups:
        table.add_section()
        sums = [_shown(each, sum(getattr(row, each) for row in rows)) for each in shown]
        table.add_row("total", *[""] * (len(groups) - 1), *sums, style="bold")
    return table


def write_csv(file: TextIO, groups: Sequence[str], rows: Iterable[pb.UsageRow]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*groups, *map(_column, COUNTERS)])
    for row in rows:
        writer.writerow(_record(groups, row).values())


def money(nanos: int) -> str:
    """Return money as a decimal number without loss."""
    return format((Decimal(nanos) / 10**9).normalize(), "f")


def utc_text(time: Timestamp, *, timespec: str = "seconds") -> str:
    return f"{time.ToDatetime().isoformat(timespec=timespec)}Z"


def _names(groups: Sequence[str], row: pb.UsageRow) -> list[str]:
    return [_name(each, row) for each in groups]


def _name(group: str, row: pb.UsageRow) -> str:
    if group == "day":
        return row.start_time.ToDatetime().date().isoformat()
    value = getattr(row, _FIELDS.get(group, group))
    return utc_text(value, timespec="minutes") if group == "hour" else str(value)


def _record(groups: Sequence[str], row: pb.UsageRow) -> dict[str, Any]:
    names = dict(zip(groups, _names(groups, row), strict=True))
    return {**names, **{_column(each): _value(each, row) for each in COUNTERS}}


def _column(counter: str) -> str:
    return "price" if counter == "price_nanos" else counter


def _value(counter: str, row: pb.UsageRow) -> int | str:
    value: int = getattr(row, counter)
    return money(value) if counter == "price_nanos" else value


def _shown(counter: str, value: int) -> str:
    return f"{Decimal(value) / 10**9:,.4f}" if counter == "price_nanos" else f"{value:,}"
