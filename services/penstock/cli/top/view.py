"""One frame of `penstock top`: the sum of the snapshots of all processes, and its tables. Pure.

`--json` prints a frame: tables with all of their rows.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from penstock.cli.top.poll import ProcessSample

Row = dict[str, Any]

SHED_KEYS = "class", "reason", "by"


class TopFrame(TypedDict):
    """Shares are 0 to 1. Rates and CPU shares are since the previous samples, or since the start of the process."""

    shards: list[Row]  # one per model and shard
    tenants: list[Row]  # one per model and version, class and tenant, over all shards; the most waiting tickets first
    sheds: list[Row]  # one per class, reason and tier that decided it, over all processes; the most tickets first
    models: list[Row]  # one per model and version, with its workers
    workers: list[Row]  # in the order of their schedulers, then by id
    processes: list[Row]


def frame_of(samples: Sequence[ProcessSample], previous: Sequence[ProcessSample] = ()) -> TopFrame:
    """Sum up `samples`; `previous` samples are for rates."""
    previous_by_id = {each.snapshot.instance_id: each for each in previous if each.snapshot}
    pairs = [(each, previous_by_id.get(each.snapshot.instance_id) if each.snapshot else None) for each in samples]
    names = {each.address: each.name for each in samples}
    workers = [_worker_row(row, each, names) for each in samples for row in each.rows("workers")]
    return TopFrame(
        shards=[row for each, earlier in pairs for row in _shard_rows(each, earlier)],
        tenants=_tenant_rows(samples),
        sheds=_shed_rows(samples, previous, max(_elapsed(*pair) for pair in pairs)),
        models=_model_rows(workers),
        workers=workers,
        processes=[_process_row(*pair) for pair in pairs],
    )


def _elapsed(process: ProcessSample, earlier: ProcessSample | None) -> float:
    """Return the time between two samples of a process, in s of its own clock."""
    since = earlier.figures.get("uptime_seconds", 0.0) if earlier else 0.0
    return max(1e-3, process.figures.get("uptime_seconds", 0.0) - since)


def _shard_rows(shard: ProcessSample, earlier: ProcessSample | None) -> list[Row]:
    predictions = {_version_of(row): row for row in shard.rows("predictions")}
    leased = {_version_of(row): row["leased"] for row in earlier.rows("models")} if earlier else {}
    span = _elapsed(shard, earlier)
    return [
        {
            "shard": shard.name,
            **predictions.get(_version_of(row), {}),
            **row,
            "leased_per_second": (row["leased"] - leased.get(_version_of(row), 0)) / span,
        }
        for row in shard.rows("models")
    ]


def _version_of(row: Row) -> tuple[str, str]:
    return row["model"], row.get("card_digest", "")


def _model_rows(workers: Iterable[Row]) -> list[Row]:
    """Return one row per model and version; a name has several versions while it is being replaced."""
    counted = ({**row, "workers": 1} for row in workers)
    totals = _sum_rows(counted, ("model", "card_digest"), ("workers", "slots", "running"))
    return sorted(totals, key=lambda row: (row["model"], -row["workers"], row["card_digest"]))


def _tenant_rows(samples: Sequence[ProcessSample]) -> list[Row]:
    rows = (row for each in samples for row in each.rows("depth"))
    totals = _sum_rows(rows, ("model", "card_digest", "class", "tenant_id"), ("waiting", "waiting_tokens", "running"))
    return sorted(totals, key=lambda row: (-row["waiting"], -row["running"], *_version_of(row), row["tenant_id"]))


def _shed_rows(samples: Sequence[ProcessSample], previous: Sequence[ProcessSample], span: float) -> list[Row]:
    def count(sampled: Sequence[ProcessSample]) -> list[Row]:
        rows = ({"by": "queue", **row} for each in sampled for row in each.rows("sheds"))
        return _sum_rows(rows, SHED_KEYS, ("tickets",))

    earlier = {tuple(row[name] for name in SHED_KEYS): row["tickets"] for row in count(previous)}
    rows = [
        row | {"per_second": max(0, row["tickets"] - earlier.get(tuple(row[name] for name in SHED_KEYS), 0)) / span}
        for row in count(samples)
    ]
    return sorted(rows, key=lambda row: -row["tickets"])


def _sum_rows(rows: Iterable[Row], by: Sequence[str], columns: Sequence[str]) -> list[Row]:
    """Sum up `columns` of the rows that are equal in the columns `by`."""
    sums: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row.get(name, "") for name in by)
        total = sums.setdefault(key, {**dict(zip(by, key, strict=True)), **dict.fromkeys(columns, 0)})
        for name in columns:
            total[name] += row.get(name, 0)
    return list(sums.values())


def _worker_row(row: Row, scheduler: ProcessSample, names: dict[str, str]) -> Row:
    slots, blocks = max(1, row["slots"]), max(1, row["kv_blocks"])
    free = max(0, row["kv_blocks"] - row["promised_blocks"])
    return {
        "worker": names.get(row["address"], row["worker_id"]),
        "scheduler": scheduler.name,
        **row,
        "free_kv_blocks": free,
        "free_kv_share": free / blocks,
        "batch_fill": row["running"] / slots,
    }


def _process_row(process: ProcessSample, earlier: ProcessSample | None) -> Row:
    row: Row = {"process": process.name, "address": process.address}
    if process.snapshot is None:
        return row | {"tier": "", "state": process.error.reason if process.error else "UNKNOWN"}
    used = process.figures["cpu_seconds"] - (earlier.figures["cpu_seconds"] if earlier else 0.0)
    return row | {
        "tier": process.snapshot.tier,
        "instance_id": process.snapshot.instance_id,
        "pid": process.snapshot.pid,
        "state": "draining" if process.snapshot.draining else "up",
        "release": process.snapshot.release,
        "cpu_share": max(0.0, used) / _elapsed(process, earlier),
        "rss_bytes": int(process.figures["rss_bytes"]),
        "open_streams": int(process.figures["open_streams"]),
        "uptime_s": process.figures["uptime_seconds"],
    }


MAX_ROWS = 12  # of a table; further rows are only counted
BAR_COLUMNS = 10
SHORT_DIGEST_CHARS = 8  # of a model's version

WAIT_COLUMNS = (
    ("waited p50", "waited_s_p50"),
    ("p95", "waited_s_p95"),
    ("late p5", "late_s_p5"),
    ("p50", "late_s_p50"),
    ("p95", "late_s_p95"),
)  # heading and key of each column

Columns = Sequence[tuple[str, bool]]  # heading, and whether the cells are numbers


def render(frame: TopFrame) -> RenderableType:
    parts = [_summary(frame), _shards(frame["shards"]), _models(frame["models"]), _workers(frame["workers"])]
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
    heads = [("shard", False), ("model", False), ("version", False)]
    heads += [(head, True) for head in ("waiting", "tokens", "running", "credit", "leases/s")]
    heads += [(head, True) for head, _ in WAIT_COLUMNS]
    table = _table(heads, "wait for a lease in ms; late: excess over the prediction")
    for row in rows:
        waits = [f"{1e3 * row[name]:,.0f}" if name in row else "-" for _, name in WAIT_COLUMNS]
        counts = [f"{row[name]:,}" for name in ("waiting", "waiting_tokens", "running", "credit")]
        names = [escape(row["shard"]), *_version_cells(row)]
        table.add_row(*names, *counts, f"{row['leased_per_second']:,.1f}", *waits)
    return table


def _models(rows: Sequence[Row]) -> Table:
    heads = [("model", False), ("version", False), ("workers", True), ("running", True), ("slots", True)]
    table = _table(heads, _caption(rows, "first"))
    for row in rows[:MAX_ROWS]:
        table.add_row(*_version_cells(row), *(f"{row[name]:,}" for name in ("workers", "running", "slots")))
    return table


def _version_cells(row: Row) -> tuple[str, str]:
    return escape(row["model"]), escape(row.get("card_digest", "")[:SHORT_DIGEST_CHARS])


def _workers(rows: Sequence[Row]) -> Table:
    heads = [(head, False) for head in ("worker", "scheduler", "zone", "model", "version", "batch")]
    heads += [(head, True) for head in ("running", "slots", "KV free", "blocks", "prefill", "tokens/s")]
    table = _table(heads, _caption(rows, "fullest"))
    for row in sorted(rows, key=lambda row: -row["batch_fill"])[:MAX_ROWS] if len(rows) > MAX_ROWS else rows:
        names = [*(escape(str(row.get(name, ""))) for name in ("worker", "scheduler", "zone")), *_version_cells(row)]
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
    heads = [("process", False), ("address", False), ("state", False), ("release", False)]
    table = _table([*heads, ("core", True), ("MB", True), ("streams", True), ("up", True)])
    for row in rows:
        figures = []
        if "pid" in row:
            figures = [f"{row['cpu_share']:.0%}", f"{row['rss_bytes'] / 1e6:,.0f}", f"{row['open_streams']:,}"]
            figures.append(f"{row['uptime_s']:,.0f} s")
        table.add_row(*(escape(row.get(name, "")) for name in ("process", "address", "state", "release")), *figures)
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
