"""One frame of a mesh: the sum of the snapshots of all of its processes, as tables. Pure.

`penstock top` renders frames, its `--json` prints one, and the page of `penstock dashboard` draws them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from penstock.chassis.security.identity import instance_of
from penstock.cli.top.poll import ProcessSample

Row = dict[str, Any]
Pair = tuple[ProcessSample, ProcessSample | None]  # a sample of a process, and its previous one

SHED_KEYS = "class", "reason", "by"
TIERS = ("edge", "auth", "queue", "scheduler", "worker", "routing", "batch")  # as a request passes them
# The figure of each tier's snapshots that counts its present requests, and the counter of its rate.
ACTIVE_FIGURES = {
    "edge": "active_requests",
    "auth": "reservations",
    "queue": "waiting",
    "scheduler": "leases",
    "worker": "running",
    "batch": "lines_running",
}
STATES = ("tokenizing", "reserving", "queued", "leased", "running", "stopping")  # of a request at its edge
RATE_FIGURES = {"edge": "requests_started", "worker": "tokens_generated", "batch": "lines_answered"}


class TopFrame(TypedDict):
    """Shares are 0 to 1. Rates and CPU shares are since the previous samples, or since the start of the process."""

    shards: list[Row]  # one per model and shard
    tenants: list[Row]  # one per model and version, class and tenant, over all shards; the most waiting tickets first
    sheds: list[Row]  # one per class, reason and tier that decided it, over all processes; the most tickets first
    models: list[Row]  # one per model and version, with its workers
    workers: list[Row]  # in the order of their schedulers, then by id
    processes: list[Row]
    tiers: list[
        Row
    ]  # one per tier; rates: of edges in requests, of queue in leases, of workers in output tokens, of batch in lines
    states: Row  # requests of all edges by state, such as `queued`
    requests: list[Row]  # recent requests of all edges with their stages, the newest first; see `request_rows`
    batches: list[Row]  # that have not ended, the oldest first


def frame_of(samples: Sequence[ProcessSample], previous: Sequence[ProcessSample] = ()) -> TopFrame:
    """Sum up `samples`; `previous` samples are for rates."""
    previous_by_id = {each.snapshot.instance_id: each for each in previous if each.snapshot}
    pairs = [(each, previous_by_id.get(each.snapshot.instance_id) if each.snapshot else None) for each in samples]
    workers = [_worker_row(row, each) for each in samples for row in each.rows("workers")]
    shards = [row for each, earlier in pairs for row in _shard_rows(each, earlier)]
    processes = [_process_row(*pair) for pair in pairs]
    return TopFrame(
        shards=shards,
        tenants=_tenant_rows(samples),
        sheds=_shed_rows(samples, previous, max(_elapsed(*pair) for pair in pairs)),
        models=_model_rows(workers),
        workers=workers,
        processes=processes,
        tiers=_tier_rows(pairs, processes, leases_per_second=sum(row["leased_per_second"] for row in shards)),
        states=_states(samples),
        requests=request_rows(samples),
        batches=_batch_rows(samples),
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
            "shard": shard.display_name,
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


def _worker_row(row: Row, scheduler: ProcessSample) -> Row:
    slots, blocks = max(1, row["slots"]), max(1, row["kv_blocks"])
    free = max(0, row["kv_blocks"] - row["promised_blocks"])
    return {
        "worker": instance_of(row["worker_id"]),
        "scheduler": scheduler.display_name,
        **row,
        "free_kv_blocks": free,
        "free_kv_share": free / blocks,
        "batch_fill": row["running"] / slots,
    }


def _process_row(process: ProcessSample, earlier: ProcessSample | None) -> Row:
    row: Row = {"process": process.display_name, "address": process.address}
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


def _tier_rows(pairs: Sequence[Pair], processes: Sequence[Row], leases_per_second: float) -> list[Row]:
    """Return one row for each tier that has a process. A process that does not answer counts as of no tier."""
    rows = []
    for tier in TIERS:
        own = [pair for pair in pairs if pair[0].snapshot and pair[0].snapshot.tier == tier]
        if not own:
            continue
        shares = [row["cpu_share"] for row in processes if row["tier"] == tier]
        rates = {"queue": leases_per_second}
        if tier in RATE_FIGURES:
            rates[tier] = sum(_rate(*pair, RATE_FIGURES[tier]) for pair in own)
        active = ACTIVE_FIGURES.get(tier, "")
        rows.append(
            {
                "tier": tier,
                "processes": len(own),
                "draining": sum(each.snapshot.draining for each, _ in own if each.snapshot),
                "active": int(sum(each.figures.get(active, 0) for each, _ in own)),
                "per_second": rates.get(tier),
                "cpu_share": sum(shares) / len(shares),
                "cpu_share_max": max(shares),
                "rss_bytes": sum(row["rss_bytes"] for row in processes if row["tier"] == tier),
            }
        )
    return rows


def _rate(process: ProcessSample, earlier: ProcessSample | None, figure: str) -> float:
    """Return the increase of a counter per second since the earlier sample, or since the start of the process."""
    before = earlier.figures.get(figure, 0.0) if earlier else 0.0
    return max(0.0, process.figures.get(figure, 0.0) - before) / _elapsed(process, earlier)


def _states(samples: Sequence[ProcessSample]) -> Row:
    edges = [each for each in samples if each.snapshot and each.snapshot.tier == "edge"]
    return {state: int(sum(each.figures.get(f"requests_{state}", 0) for each in edges)) for state in STATES}


def _batch_rows(samples: Sequence[ProcessSample]) -> list[Row]:
    """Return the batches of all processes; replicas of one store have the same ones."""
    return list({row["batch_id"]: row for each in samples for row in each.rows("batches")}.values())


def request_rows(samples: Sequence[ProcessSample]) -> list[Row]:
    """Return the rows of the tables `requests`, the newest first.

    Each row has `request_id`, `model`, `tenant_id`, `outcome`, `end_time` in Unix s, `total_s` and `stages`: `tier`,
    `name`, `start_s` from the arrival, and `length_s`. An edge without that table has no rows.
    """
    rows = [{"edge": each.display_name, **row} for each in samples for row in each.rows("requests")]
    return sorted(rows, key=lambda row: -row["end_time"])
