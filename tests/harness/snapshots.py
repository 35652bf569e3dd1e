"""Snapshots of processes, as an operator's command receives them."""

from penstock.cli.top.poll import ProcessSample
from penstock.v1.admin_pb2 import Snapshot

PROCESS_FIGURES = {"cpu_seconds": 1.0, "rss_bytes": 5e7, "open_streams": 3, "uptime_seconds": 10.0}


def process_snapshot(name, tier, *, cpu=1.0, uptime=10.0, **tables):
    figures = PROCESS_FIGURES | {"cpu_seconds": cpu, "uptime_seconds": uptime}
    snapshot = Snapshot(tier=tier, instance_id=f"{name}-id", pid=7, figures=figures)
    snapshot.tables.update(tables)
    return ProcessSample(name=name, address=f"{name}:1", snapshot=snapshot)


def shard(name, *, waiting=0, leased=0, shed=0, **given):
    return process_snapshot(
        name,
        "queue",
        models=[
            {"model": "m", "waiting": waiting, "waiting_tokens": 10, "running": 1, "credit": 0, "leased": leased},
        ],
        depth=[{"model": "m", "class": "batch", "tenant_id": "acme", "waiting": waiting, "waiting_tokens": 10}],
        sheds=[{"class": "batch", "reason": "DEADLINE", "tickets": shed}],
        predictions=[{"model": "m", "waited_s_p50": 1.25, "late_s_p5": -0.25, "waits": 8}],
        **given,
    )


def scheduler(*workers):
    return process_snapshot("scheduler-1", "scheduler", workers=list(workers))


def worker(name="w", *, running=3, **fields):
    row = {"worker_id": f"{name}-id", "address": f"{name}:1", "model": "m", "slots": 4, "kv_blocks": 100, "leases": 3}
    return row | {"promised_blocks": 25, "running": running, "prefill_tokens": 9, "tokens_per_second": 50.5} | fields
