"""Renders a frame of `penstock top` as tables. Pure."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.top.frame import Row, TopFrame

MAX_ROWS = 12  # of a table; further rows are only counted
BAR_COLUMNS = 10

WAIT_COLUMNS = (
    ("waited p50", "waited_s_p50"),
    ("p95", "waited_s_p95"),
    ("late p5", "late_s_p5"),
    ("p50", "late_s_p50"),
    ("p95", "late_s_p95"),
)  # heading and key of each column

Columns = Sequence[tuple[str, bool]]  # heading, and whether the cells are numbers


def render(frame: TopFrame) -> RenderableType:
    parts = [_summary(frame), _shards(frame["shards"]), _workers(frame["workers"])]
    parts += [table for table in (_tenants(frame["tenants"]), _sheds(frame["sheds"])) if table.row_count]
    return Group(*(each for part in [*parts, _processes(frame["processes"])] for each in (part, Text())))


def _summary(frame: TopFrame) -> RenderableType:
    shards, workers = frame["shards"], frame["workers"]
    waiting, running = sum(row["waiting"] for row in shards), sum(row["running"] for row in workers)
    slots, pace = sum(row["slots"] for row in workers), sum(row["tokens_per_second"] for row in workers)
    shed = sum(row["per_second"] for row in frame["sheds"])
    leased = sum(row["leased_per_second"] for row in shards)
    return Text.from_markup(
        f"[bold]{waiting:,}[/] waiting   [bold]{running:,}[/] running of {slots:,} slots   "
        f"[bold]{pace:,.0f}[/] tokens/s while busy   {leased:,.1f} leases/s   {shed:,.1f} shed/s"
    )


def _shards(rows: Sequence[Row]) -> Table:
    heads = [("shard", False), ("model", False)]
    heads += [(head, True) for head in ("waiting", "tokens", "running", "credit", "leases/s")]
    heads += [(head, True) for head, _ in WAIT_COLUMNS]
    table = _table(heads, "wait for a lease in ms; late: excess over the prediction")
    for row in rows:
        waits = [f"{1e3 * row[name]:,.0f}" if name in row else "-" for _, name in WAIT_COLUMNS]
        counts = [f"{row[name]:,}" for name in ("waiting", "waiting_tokens", "running", "credit")]
        table.add_row(escape(row["shard"]), escape(row["model"]), *counts, f"{row['leased_per_second']:,.1f}", *waits)
    return table


def _workers(rows: Sequence[Row]) -> Table:
    heads = [("worker", False), ("scheduler", False), ("zone", False), ("model", False), ("batch", False)]
    heads += [(head, True) for head in ("running", "slots", "KV free", "blocks", "prefill", "tokens/s")]
    table = _table(heads, _caption(rows, "fullest"))
    for row in sorted(rows, key=lambda row: -row["batch_fill"])[:MAX_ROWS] if len(rows) > MAX_ROWS else rows:
        names = [escape(str(row.get(name, ""))) for name in ("worker", "scheduler", "zone", "model")]
        counts = [f"{row['running']:,}", f"{row['slots']:,}", f"{row['free_kv_share']:.0%}", f"{row['kv_blocks']:,}"]
        pace = [f"{row['prefill_tokens']:,}", f"{row['tokens_per_second']:,.0f}"]
        table.add_row(*names, _bar(row["batch_fill"]), *counts, *pace)
    return table


def _tenants(rows: Sequence[Row]) -> Table:
    heads = [("tenant", False), ("class", False), ("model", False), ("waiting", True), ("tokens", True)]
    table = _table([*heads, ("running", True)], _caption(rows, "deepest"))
    for row in rows[:MAX_ROWS]:
        names = [escape(row[name]) for name in ("tenant_id", "class", "model")]
        table.add_row(*names, *(f"{row[name]:,}" for name in ("waiting", "waiting_tokens", "running")))
    return table


def _sheds(rows: Sequence[Row]) -> Table:
    table = _table([("shed for", False), ("class", False), ("by", False), ("tickets", True), ("per s", True)])
    for row in rows[:MAX_ROWS]:
        names = [escape(row[name]) for name in ("reason", "class", "by")]
        table.add_row(*names, f"{row['tickets']:,}", f"{row['per_second']:,.1f}")
    return table


def _processes(rows: Sequence[Row]) -> Table:
    heads = [("process", False), ("address", False), ("state", False)]
    table = _table([*heads, ("core", True), ("MB", True), ("streams", True), ("up", True)])
    for row in rows:
        figures = []
        if "pid" in row:
            figures = [f"{row['cpu_share']:.0%}", f"{row['rss_bytes'] / 1e6:,.0f}", f"{row['open_streams']:,}"]
            figures.append(f"{row['uptime_s']:,.0f} s")
        table.add_row(*(escape(row[name]) for name in ("process", "address", "state")), *figures)
    return table


def _table(heads: Iterable[tuple[str, bool]], caption: str = "") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", caption=caption or None, caption_justify="left")
    for head, is_number in heads:
        table.add_column(head, justify="right" if is_number else "left", no_wrap=True)
    return table


def _caption(rows: Sequence[Row], kind: str) -> str:
    return f"the {MAX_ROWS} {kind} of {len(rows):,}" if len(rows) > MAX_ROWS else ""


def _bar(share: float) -> str:
    full = round(BAR_COLUMNS * min(1.0, share))
    return "█" * full + "░" * (BAR_COLUMNS - full)
