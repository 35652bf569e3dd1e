"""Frames of a mesh: sums over shards, rates between two samples, and their text."""

import os
import subprocess
import sys

from penstock.chassis.errors import Unavailable
from penstock.cli.top.frame import frame_of
from penstock.cli.top.once import MAX_ROWS, frame_lines
from penstock.cli.top.poll import ProcessSample
from snapshots import process_snapshot, scheduler, shard, worker


def text_of(frame):
    return "\n".join(frame_lines(frame, width=200))


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


def test_workers_have_the_names_of_their_instances_and_their_free_shares():
    frame = frame_of([scheduler(worker(worker_id="worker-1.987456a0"), worker(worker_id="worker-1.aaaaaaaa"))])
    first, second = frame["workers"]
    assert (first["worker"], second["worker"]) == ("worker-1", "worker-1")
    assert first["worker_id"] != second["worker_id"]
    assert (first["free_kv_blocks"], first["free_kv_share"], first["batch_fill"]) == (75, 0.75, 0.75)


def test_a_process_that_is_known_by_its_address_has_the_name_of_its_instance():
    known = process_snapshot("queue-1", "queue")
    known.snapshot.instance_id = "queue-1.0123abcd"
    unnamed = ProcessSample(name=known.address, address=known.address, snapshot=known.snapshot)
    assert frame_of([unnamed])["processes"][0]["process"] == "queue-1"


def test_tiers_have_the_sums_of_their_processes_and_their_rates():
    def samples(uptime, started, tokens, cpu):
        edges = [process_snapshot(f"edge-{number}", "edge", cpu=cpu, uptime=uptime) for number in (1, 2)]
        for each in edges:
            each.snapshot.figures.update(active_requests=3, requests_started=started, requests_queued=2)
        one = process_snapshot("worker-1", "worker", cpu=cpu, uptime=uptime)
        one.snapshot.figures.update(running=4, tokens_generated=tokens)
        return [*edges, one]

    frame = frame_of(samples(22.0, 110, 900, 3.0), samples(20.0, 100, 700, 2.0))
    shown = [(row["tier"], row["processes"], row["active"], row["per_second"]) for row in frame["tiers"]]
    assert shown == [("edge", 2, 6, 10.0), ("worker", 1, 4, 100.0)]
    assert [row["cpu_share"] for row in frame["tiers"]] == [0.5, 0.5]
    assert frame["states"]["queued"] == 4


def test_recent_requests_of_all_edges_are_listed_from_the_newest():
    def edge(name, *ends):
        rows = [{"request_id": f"{name}-{end}", "end_time": end, "total_s": 0.5, "stages": []} for end in ends]
        return process_snapshot(name, "edge", requests=rows)

    frame = frame_of([edge("edge-1", 5, 7), edge("edge-2", 6), process_snapshot("edge-3", "edge")])
    assert [row["request_id"] for row in frame["requests"]] == ["edge-1-7", "edge-2-6", "edge-1-5"]


def test_batches_of_replicas_of_one_store_are_listed_once_with_the_time_that_they_need():
    row = {"batch_id": "batch_1", "tenant_id": "acme", "state": "in_progress", "lines": 5_000, "completed": 1_250}
    row |= {"failed": 3, "time_left_s": 90.0, "window_left_s": 80_000.0}
    replicas = [process_snapshot(name, "batch", batches=[row]) for name in ("batch-1", "batch-2")]
    for each in replicas:
        each.snapshot.figures.update(lines_running=7, lines_answered=600)
    frame = frame_of(replicas)
    assert [each["batch_id"] for each in frame["batches"]] == ["batch_1"]
    assert [(each["tier"], each["active"], each["per_second"]) for each in frame["tiers"]] == [("batch", 14, 120.0)]
    cells = next(line for line in text_of(frame).splitlines() if line.startswith("batch_1")).split()
    assert cells == ["batch_1", "acme", "in_progress", "5,000", "1,250", "3", "90", "s", "80,000", "s"]


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
