"""The proofs themselves, short: a few streams, three kills, one rolling restart."""

import asyncio
import io
import json
import sys
from dataclasses import asdict

import pytest
from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.live import clocks
from penstock.proofs.live.partition import PartitionOptions, partition
from penstock.proofs.testbed.tcp_relays import CLIENTS, CutDirection
from tiny_model import write_tiny_model

pytestmark = pytest.mark.alone

COMMAND = (sys.executable, "-m", "penstock.cli", "scorecard", "--json", "--streams", "4", "--tokens", "24")


async def proved(proof, model, *options):
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--model", model, *options, proof, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert out, errors.decode()
    (card,) = json.loads(out)
    assert not card["void"], card
    return card, {line["figure"]: line for line in card["lines"]}


def assert_nothing_lost(card, lines):
    exact = [line for line in card["lines"] if line["goal"] in ("0", "100")]
    assert len(exact) >= 10
    assert not [line for line in exact if not line["is_met"]], card["notes"]
    assert lines["requests"]["measured"] > 4


@pytest.mark.parametrize("engine", ["sim", "torch"])
async def test_three_processes_of_any_tier_are_killed_and_no_client_loses_a_token(tiny_model, engine):
    card, lines = await proved(
        "kill", tiny_model, "--engine", engine, "--kills", "3", "--every", "0.5", "--streams", "6"
    )
    assert_nothing_lost(card, lines)
    kinds = ("of them greedy", "of them sampled with a seed", "of them ended by a stop string")
    assert all(lines[kind]["measured"] > 0 for kind in kinds)
    assert lines["requests active during a fault"]["measured"] > 0
    assert "3 faults" in card["notes"][-1]


async def test_weights_are_updated_amid_kills_and_each_answer_is_of_one_version(tiny_model):
    mesh = ("--edges", "2", "--queues", "1", "--schedulers", "1", "--workers", "2", "--engine", "torch")
    card, lines = await proved("rollout", tiny_model, *mesh, "--kills", "3", "--every", "0.5")
    assert_nothing_lost(card, lines)
    assert lines["answers of the old weights"]["measured"] > 0
    assert lines["answers of the new weights"]["measured"] > 0


async def test_the_disk_of_auth_is_full_and_known_callers_are_served_and_charged_once(tiny_model):
    mesh = ("--edges", "1", "--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("disk", tiny_model, *mesh, "--seconds", "3")
    assert_nothing_lost(card, lines)
    assert lines["requests served while the disk was full"]["measured"] > 4


async def test_replicas_of_auth_and_edges_die_and_limits_and_ledger_stay_exact(tiny_model):
    mesh = ("--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("quota", tiny_model, *mesh, "--kills", "3", "--every", "1", "--streams", "32")
    assert_nothing_lost(card, lines)
    assert lines["cancelled by their clients"]["measured"] > 0
    assert lines["deaths of a replica of auth"]["measured"] > 0
    assert lines["tickets compared with the engines"]["measured"] > 30


async def test_postgres_is_away_and_known_callers_are_served_and_charged_once(tiny_model):
    mesh = ("--edges", "1", "--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("database", tiny_model, *mesh, "--seconds", "3")
    assert_nothing_lost(card, lines)
    assert lines["answers while the database was away"]["measured"] > 0
    assert lines["strangers refused while the database was away"]["measured"] > 1


async def test_every_process_is_drained_in_turn_and_no_client_loses_a_token(tiny_model):
    mesh = ("--edges", "2", "--queues", "1", "--schedulers", "1", "--workers", "2")
    card, lines = await proved("drain", tiny_model, *mesh)
    assert_nothing_lost(card, lines)
    assert lines["processes that did not exit 0"]["measured"] == 0


async def test_a_soak_samples_every_process_and_leaves_no_residue(tiny_model):
    mesh = ("--edges", "1", "--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("soak", tiny_model, *mesh, "--requests", "200")
    assert lines["of them cancelled by their clients"]["measured"] > 0
    assert not [line for line in card["lines"] if line["goal"] == "0" and not line["is_met"]], card["notes"]
    assert lines["memory of all processes at the end"]["measured"] > 100
    assert len(card["notes"]) == 5, "one line for each process"


async def test_clients_cancel_over_every_transport_and_no_resource_leaks(tmp_path):
    model = str(write_tiny_model(tmp_path / "long", context=2_048))  # its tokens are bytes, and answers are long
    mesh = ("--edges", "1", "--queues", "1", "--schedulers", "1", "--workers", "1")
    card, lines = await proved("cancel", model, *mesh, "--cancels", "192", "--tokens", "400")
    latencies = ("P99 client to engine", "P99 by grpc", "P99 by session", "P99 by http", "P99 client to edge")
    patterns = "of 32 streams", "32 at once", "128 at once"
    assert all(lines[f"{pattern}: {each}"]["measured"] > 0 for pattern in patterns for each in latencies)
    counted = [line for line in card["lines"] if line["goal"] and line["unit"] != "ms"]
    assert len(counted) == 5
    assert all(line["is_met"] for line in counted), card
    assert lines["clients that cancelled"]["measured"] == 192


async def test_links_are_cut_and_no_client_loses_a_token(tiny_model):
    mesh = MeshOptions(model=tiny_model, engine="sim", edges=2, workers=2)
    links, cuts = [("edge", "worker"), (CLIENTS, "edge")], [CutDirection.DOWNSTREAM]
    card = await partition(
        PartitionOptions(streams=4, tokens=24, links=links, cuts=cuts), mesh, Console(file=io.StringIO())
    )
    assert not card.void_reason
    assert_nothing_lost(card.to_json(), {line.figure: asdict(line) for line in card.lines})
    noticed = [line for line in card.lines if "no process detected" in line.figure]
    assert [line.measured for line in noticed] == [0]


async def test_clocks_that_are_wrong_or_step_fail_no_request(tiny_model, monkeypatch):
    monkeypatch.setattr(clocks, "WARM_UP_S", 2.0)
    cases = (clocks.ClockCase("edge", -5.0), clocks.ClockCase("queue", 61.0, is_step=True))
    mesh = MeshOptions(model=tiny_model, engine="sim", edges=2, workers=1)
    card = await clocks.clocks(clocks.ClocksOptions(seconds=3.0, cases=cases), mesh, Console(file=io.StringIO()))
    found = {line.figure: line for line in card.lines}
    assert not card.void_reason
    for case in cases:
        assert found[f"{case.label}: failed otherwise"].measured == 0
        assert found[f"{case.label}: rejected share, deviation"].measured < 50.0, "the queue still rejects"
    assert found["figures not back at zero"].measured == 0
