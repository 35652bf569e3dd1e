"""The tables of `penstock top`: their columns, from the most to the least important rank."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.cli.top.layout import Column, TableView

BAR_COLUMNS = 10
SHORT_DIGEST_CHARS = 8  # of a model's version


def bar(share: float) -> str:
    full = round(BAR_COLUMNS * min(1.0, share))
    return "█" * full + "░" * (BAR_COLUMNS - full)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.1f}"


def _share(value: float) -> str:
    return f"{value:.0%}"


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:,.0f}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s"


def _digest(value: str) -> str:
    return value[:SHORT_DIGEST_CHARS]


def _number(head: str, key: str, rank: int = 0, text: Callable[[Any], str] = _count) -> Column:
    return Column(head=head, key=key, text=text, rank=rank, is_number=True)


MODEL = Column(head="model", key="model", rank=1)
VERSION = Column(head="version", key="card_digest", text=_digest, rank=9)

TABLES: Sequence[TableView] = (
    TableView(
        name="tiers",
        rows="tiers",
        ids=("tier",),
        columns=(
            Column(head="tier", key="tier"),
            _number("processes", "processes"),
            _number("draining", "draining", 2),
            _number("active", "active"),
            _number("per s", "per_second", text=_rate),
            _number("CPU", "cpu_share", 1, _share),
            _number("max CPU", "cpu_share_max", 1, _share),
            _number("MB", "rss_bytes", 2, _megabytes),
        ),
        note="per s: requests at edges, leases at queues, tokens at workers, lines at batch",
        child="processes",
        link=("tier",),
    ),
    TableView(
        name="shards",
        rows="shards",
        ids=("shard", "model", "card_digest"),
        columns=(
            Column(head="shard", key="shard"),
            MODEL,
            VERSION,
            _number("waiting", "waiting"),
            _number("tokens", "waiting_tokens", 4),
            _number("running", "running"),
            _number("credit", "credit", 5),
            _number("leases/s", "leased_per_second", text=_rate),
            _number("waited p50", "waited_s_p50", 2, _milliseconds),
            _number("p95", "waited_s_p95", text=_milliseconds),
            _number("late p5", "late_s_p5", 7, _milliseconds),
            _number("late p50", "late_s_p50", 6, _milliseconds),
            _number("late p95", "late_s_p95", 3, _milliseconds),
        ),
        note="wait for a lease in ms; late: excess over the prediction",
        child="tenants",
        link=("model", "card_digest"),
    ),
    TableView(
        name="models",
        rows="models",
        ids=("model", "card_digest"),
        columns=(
            MODEL,
            VERSION,
            _number("workers", "workers"),
            _number("running", "running"),
            _number("slots", "slots"),
        ),
        child="workers",
        link=("model", "card_digest"),
    ),
    TableView(
        name="workers",
        rows="workers",
        ids=("worker_id",),
        columns=(
            Column(head="worker", key="worker"),
            Column(head="scheduler", key="scheduler", rank=8),
            Column(head="zone", key="zone", rank=6),
            Column(head="model", key="model", rank=5),
            VERSION,
            Column(head="batch", key="batch_fill", text=bar, rank=2),
            _number("running", "running"),
            _number("slots", "slots"),
            _number("KV free", "free_kv_share", text=_share),
            _number("blocks", "kv_blocks", 4),
            _number("prefill", "prefill_tokens", 1),
            _number("tokens/s", "tokens_per_second"),
        ),
        order=("batch_fill",),
        kind="fullest",
    ),
    TableView(
        name="tenants",
        rows="tenants",
        ids=("tenant_id", "class", "model", "card_digest"),
        columns=(
            Column(head="tenant", key="tenant_id"),
            Column(head="class", key="class"),
            MODEL,
            _number("waiting", "waiting"),
            _number("tokens", "waiting_tokens", 2),
            _number("running", "running"),
        ),
        kind="deepest",
    ),
    TableView(
        name="sheds",
        rows="sheds",
        ids=("reason", "class", "by"),
        columns=(
            Column(head="shed for", key="reason"),
            Column(head="class", key="class"),
            Column(head="by", key="by"),
            _number("tickets", "tickets"),
            _number("per s", "per_second", text=_rate),
        ),
    ),
    TableView(
        name="processes",
        rows="processes",
        ids=("process",),
        columns=(
            Column(head="process", key="process"),
            Column(head="address", key="address", rank=4),
            Column(head="state", key="state"),
            Column(head="release", key="release", rank=3),
            _number("CPU", "cpu_share", text=_share),
            _number("MB", "rss_bytes", 1, _megabytes),
            _number("streams", "open_streams", 2),
            _number("up", "uptime_s", text=_seconds),
        ),
    ),
    TableView(
        name="requests",
        rows="requests",
        ids=("request_id",),
        columns=(
            Column(head="request", key="request_id"),
            Column(head="tenant", key="tenant_id"),
            MODEL,
            Column(head="outcome", key="outcome"),
            _number("ms", "total_s", text=_milliseconds),
        ),
    ),
    TableView(
        name="batches",
        rows="batches",
        ids=("batch_id",),
        columns=(
            Column(head="batch", key="batch_id"),
            Column(head="tenant", key="tenant_id", rank=1),
            Column(head="state", key="state"),
            _number("lines", "lines"),
            _number("completed", "completed"),
            _number("failed", "failed", 2),
            _number("end in", "time_left_s", text=_seconds),
            _number("window", "window_left_s", 3, _seconds),
        ),
        note="end in: at the mean speed so far; window: time until the batch expires",
        kind="oldest",
    ),
)
