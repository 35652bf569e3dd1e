"""Usage as messages of the Admin service, with the ranges of what a caller asks."""

from collections.abc import Iterator, Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from penstock.auth.store.rows import Row
from penstock.auth.store.totals import COUNTERS, DAY_S
from penstock.auth.usage.query import (
    DEFAULT_LIMIT,
    EXPORT_COLUMNS,
    MAX_LIMIT,
    MAX_UNIX_S,
    UsageFilter,
    UsageQuery,
)
from penstock.chassis.errors import InvalidArgument
from penstock.v1 import admin_pb2 as pb

MAX_NAME_CHARS = 256
DEFAULT_RANGE_S = 30 * DAY_S
ROWS_PER_MESSAGE = 500
_GROUPS = {
    pb.USAGE_GROUP_TENANT: "tenant_id",
    pb.USAGE_GROUP_KEY: "key_id",
    pb.USAGE_GROUP_MODEL: "model",
    pb.USAGE_GROUP_REGION: "region",
    pb.USAGE_GROUP_DAY: "day",
    pb.USAGE_GROUP_HOUR: "hour",
}
_FIELDS = {"edge_id": "edge", "reserved_at": "reserve_time", "settled_at": "settle_time"}
_EXPORT_FIELDS = tuple(_FIELDS.get(each, each) for each in EXPORT_COLUMNS)
_TIMES = frozenset({"reserve_time", "settle_time"})


def filter_of(message: pb.UsageFilter, now: float) -> UsageFilter:
    """Raises InvalidArgument."""
    end = _seconds(message.end_time) if message.HasField("end_time") else now
    start = _seconds(message.start_time) if message.HasField("start_time") else max(0.0, end - DEFAULT_RANGE_S)
    if not 0 <= start <= end <= MAX_UNIX_S:
        text = "start_time must not be after end_time, and both must be from 1970-01-01 to 2106-02-07"
        raise InvalidArgument(text, field="filter.start_time")
    names = {"tenant_id": message.tenant_id, "key_id": message.key_id, "model": message.model}
    for name, value in names.items():
        if len(value) > MAX_NAME_CHARS or "\0" in value:
            raise InvalidArgument(f"{name} must have at most {MAX_NAME_CHARS} characters", field=f"filter.{name}")
    return UsageFilter(start=start, end=end, **names)


def query_of(request: pb.QueryUsageRequest, now: float) -> UsageQuery:
    """Raises InvalidArgument."""
    groups = tuple(_GROUPS.get(each, "") for each in request.groups)
    if "" in groups or len(set(groups)) < len(groups) or {"day", "hour"} <= set(groups):
        text = "groups must be known ones, each at most once, and not both day and hour"
        raise InvalidArgument(text, field="groups")
    if request.limit > MAX_LIMIT:
        raise InvalidArgument(f"limit must be at most {MAX_LIMIT}", field="limit")
    limit = request.limit or DEFAULT_LIMIT
    return UsageQuery(filter=filter_of(request.filter, now), groups=groups, limit=limit)


def usage_responses(query: UsageQuery, rows: list[Row], *, is_truncated: bool) -> Iterator[pb.QueryUsageResponse]:
    """Return at least one message, the last of which says whether rows are missing."""
    parts = _parts(rows) or [[]]
    for number, part in enumerate(parts, 1):
        found = [_usage_row(query.groups, row) for row in part]
        yield pb.QueryUsageResponse(rows=found, truncated=is_truncated and number == len(parts))


def ledger_responses(rows: list[Row], total_hint: int) -> Iterator[pb.ExportLedgerResponse]:
    for number, part in enumerate(_parts(rows)):
        hint = 0 if number else total_hint
        yield pb.ExportLedgerResponse(rows=[_ledger_row(row) for row in part], total_hint=hint)


def _parts(rows: list[Row]) -> list[list[Row]]:
    return [rows[first : first + ROWS_PER_MESSAGE] for first in range(0, len(rows), ROWS_PER_MESSAGE)]


def _usage_row(groups: Sequence[str], row: Row) -> pb.UsageRow:
    message = pb.UsageRow()
    for group, value in zip(groups, row, strict=False):
        if group in ("day", "hour"):
            message.start_time.FromSeconds(int(value))
        else:
            setattr(message, group, value)
    for counter, value in zip(COUNTERS, row[len(groups) :], strict=True):
        setattr(message, counter, int(value or 0))  # the sum of no row is NULL
    return message


def _ledger_row(row: Row) -> pb.LedgerRow:
    message = pb.LedgerRow()
    for name, value in zip(_EXPORT_FIELDS, row, strict=True):
        if name in _TIMES:
            getattr(message, name).FromMicroseconds(round(value * 1e6))
        else:
            setattr(message, name, value)
    return message


def _seconds(time: Timestamp) -> float:
    return time.seconds + time.nanos / 1e9
