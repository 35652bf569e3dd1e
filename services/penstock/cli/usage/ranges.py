"""Time ranges of the command line, and usage filters."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from penstock.v1 import admin_pb2 as pb

DEFAULT_DAYS = 30


class UtcTime(click.ParamType[datetime]):
    """A date or time of ISO 8601, in UTC unless it has an offset."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no date or time such as 2026-11-01 or 2026-11-01T13:00", param, ctx)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)


def usage_filter(
    start: datetime | None,
    end: datetime | None,
    *,
    now: datetime,
    tenant_id: str = "",
    key_id: str = "",
    model: str = "",
) -> pb.UsageFilter:
    """Return the filter of a range. Without an end it ends now; without a start it has 30 days of whole hours.

    Raises UsageError.
    """
    end = end or now
    if start is None:
        start = (end - timedelta(days=DEFAULT_DAYS)).replace(minute=0, second=0, microsecond=0)
    if start > end:
        raise click.UsageError("--from must not be after --to")
    message = pb.UsageFilter(tenant_id=tenant_id, key_id=key_id, model=model)
    message.start_time.FromDatetime(start)
    message.end_time.FromDatetime(end)
    return message
