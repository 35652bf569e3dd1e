"""One frame as text: a summary and each table with its first rows. Pure."""

from collections.abc import Sequence

from penstock.cli.top.frame import Row, TopFrame
from penstock.cli.top.layout import TableView, table_lines
from penstock.cli.top.tables import TABLES

MAX_ROWS = 12  # of a table; further rows are only counted
SUMMARY_SEPARATOR = "   "
ALWAYS_SHOWN = ("tiers", "shards", "models", "workers", "processes")  # also without rows


def summary(frame: TopFrame, width: int) -> str:
    """Return the totals in one line; the last ones are left out if they do not fit."""
    shards, workers = frame["shards"], frame["workers"]
    waiting, running = sum(row["waiting"] for row in shards), sum(row["running"] for row in workers)
    slots, pace = sum(row["slots"] for row in workers), sum(row["tokens_per_second"] for row in workers)
    shed = sum(row["per_second"] for row in frame["sheds"])
    leased = sum(row["leased_per_second"] for row in shards)
    parts = [f"{waiting:,} waiting", f"{running:,} running of {slots:,} slots", f"{pace:,.0f} tokens/s while busy"]
    parts += [f"{shed:,.1f} shed/s", f"{leased:,.1f} leases/s"]
    while len(line := SUMMARY_SEPARATOR.join(parts)) > width and len(parts) > 1:
        parts.pop()
    return line


def frame_lines(frame: TopFrame, width: int) -> list[str]:
    """Return the lines of all tables, within `width` cells."""
    lines = [summary(frame, width)]
    for view in TABLES:
        rows: Sequence[Row] = frame[view.rows]  # type: ignore[literal-required]  # a table's key is one of the frame
        if rows or view.name in ALWAYS_SHOWN:
            lines += ["", *_table(view, rows, width)]
    return lines


def _table(view: TableView, rows: Sequence[Row], width: int) -> list[str]:
    is_long = len(rows) > MAX_ROWS and view.name != "processes"
    shown = view.ordered(rows)[:MAX_ROWS] if is_long else rows
    caption = f"the {MAX_ROWS} {view.kind} of {len(rows):,}" if is_long else ""
    return [*table_lines(view, shown, width), *filter(None, (view.note, caption))]
