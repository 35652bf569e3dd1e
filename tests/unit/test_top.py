"""Frames of `penstock top`: sums over shards, rates between two samples, and their rendering."""

import io
import os
import subprocess
import sys

from rich.console import Console

from penstock.chassis.errors import Unavailable
from penstock.cli.top.poll import ProcessSample
from penstock.cli.top.view import MAX_ROWS, frame_of, render
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


def text_of(frame):
    page = io.StringIO()
    Console(file=page, width=200, highlight=False).print(render(frame))
    return page.getvalue()


def test_a_tenant_is_summed_up_over_all_shards():
    frame = frame_of([shard("queue-1", waiting=2), shard("queue-2", waiting=3)])
    row = {
        "model": "m",
        "card_digest": "",
        "class": "batch",
        "tenant_id": "acme",
        "waiting": 5,
        "waiting_tokens": 20,
        "running": 0,
    }
    assert frame["tenants"] == [row]
    assert [(row["shard"], row["waiting"], row["waited_s_p50"]) for row in frame["shards"]] == [
        ("queue-1", 2, 1.25),
        ("queue-2", 3, 1.25),
    ]


def test_rates_are_over_the_time_between_two_samples():
    before = [shard("queue-1", leased=100, shed=10, cpu=2.0, uptime=20.0)]
    frame = frame_of([shard("queue-1", leased=110, shed=14, cpu=2.5, uptime=22.0)], before)
    assert frame["shards"][0]["leased_per_second"] == 5.0
    assert frame["sheds"] == [{"class": "batch", "reason": "DEADLINE", "by": "queue", "tickets": 14, "per_second": 2.0}]
    assert frame["processes"][0]["cpu_share"] == 0.25


def test_rejections_by_edges_are_listed_with_those_by_shards():
    row = {"class": "batch", "reason": "DEADLINE", "by": "edge", "tickets": 3}
    edges = [process_snapshot(f"edge-{number}", "edge", sheds=[row]) for number in (1, 2)]
    frame = frame_of([shard("queue-1", shed=10), *edges])
    assert [(each["by"], each["tickets"]) for each in frame["sheds"]] == [("queue", 10), ("edge", 6)]
    assert "edge" in text_of(frame)


def test_a_restarted_process_has_no_negative_rates():
    former = shard("queue-1", leased=100, shed=10, cpu=9.0, uptime=900.0)
    former.snapshot.instance_id = "its former life"
    frame = frame_of([shard("queue-1", leased=4, shed=2, uptime=2.0)], [former])
    assert frame["shards"][0]["leased_per_second"] == 2.0
    assert frame["sheds"][0]["per_second"] == 0.0
    assert frame["processes"][0]["cpu_share"] == 0.5


def test_workers_have_the_names_of_their_processes_if_these_are_known():
    frame = frame_of([process_snapshot("worker-1", "worker"), scheduler(worker("worker-1"), worker("elsewhere"))])
    first, second = frame["workers"]
    assert (first["worker"], second["worker"]) == ("worker-1", "elsewhere-id")
    assert (first["free_kv_blocks"], first["free_kv_share"], first["batch_fill"]) == (75, 0.75, 0.75)


def test_a_process_that_does_not_answer_is_shown_with_the_reason():
    silent = ProcessSample(name="queue-2", address="q:2", error=Unavailable("gone", reason="CONNECTION_LOST"))
    frame = frame_of([shard("queue-1"), silent])
    assert frame["processes"][1] == {"process": "queue-2", "address": "q:2", "tier": "", "state": "CONNECTION_LOST"}
    assert "CONNECTION_LOST" in text_of(frame)


def test_the_view_shows_the_fullest_of_many_workers_with_a_caption():
    workers = [worker(f"w{number}", running=number % 5) for number in range(4 * MAX_ROWS)]
    text = text_of(frame_of([shard("queue-1", waiting=7, shed=3), scheduler(*workers)]))
    assert text.count("██████████") == 9  # those with a full batch
    assert f"the {MAX_ROWS} fullest of {4 * MAX_ROWS}" in text
    for shown in ("7 waiting", "acme", "DEADLINE", "1,250", "queue-1"):
        assert shown in text


def test_names_in_brackets_are_text_not_markup():
    frame = frame_of([shard("[red]"), scheduler(worker(model="[/bold]"))])
    assert "[red]" in text_of(frame)
    assert "[/bold]" in text_of(frame)


def test_waits_are_shown_in_milliseconds_with_their_lateness():
    cells = next(line for line in text_of(frame_of([shard("queue-1")])).splitlines() if "queue-1" in line).split()
    assert "1,250" in cells
    assert "-250" in cells


def test_tables_in_a_pipe_are_not_truncated():
    """Without a terminal there is no width limit."""
    frame = "from penstock.cli.tables import stdout_console; stdout_console.print(stdout_console.width)"
    away = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    piped = subprocess.run([sys.executable, "-c", frame], env=away, capture_output=True, text=True, check=True)
    assert int(piped.stdout) >= 140
