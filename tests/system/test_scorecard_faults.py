"""Proofs that kill, drain and cut processes, short: a few streams, three kills, one rolling restart."""

import io
from dataclasses import asdict

import pytest
from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.tcp_relay import CutDirection
from penstock.proofs.batches.proof import BatchOptions, run_batches
from penstock.proofs.live.partition import PartitionOptions, partition
from penstock.proofs.testbed.faults.tcp_relays import CLIENTS
from scorecards import assert_nothing_lost, proved


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


async def test_every_process_is_drained_in_turn_and_no_client_loses_a_token(tiny_model):
    mesh = ("--edges", "2", "--queues", "1", "--schedulers", "1", "--workers", "2")
    card, lines = await proved("drain", tiny_model, *mesh)
    assert_nothing_lost(card, lines)
    assert lines["processes that did not exit 0"]["measured"] == 0


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


async def test_lines_of_a_batch_are_answered_and_charged_once_amid_kills_and_outages_and_a_cancel(tiny_model):
    slow = ("PENSTOCK_WORKER_SIM_BASE_S=0.05", "PENSTOCK_WORKER_SLOTS=4")  # the lines outlast the faults
    mesh = MeshOptions(model=tiny_model, engine="sim", edges=2, workers=2, settings=slow)
    options = BatchOptions(lines=800, tokens=4, kills=2, every=0.5, seconds=1.5)
    card = await run_batches(options, mesh, Console(file=io.StringIO()))
    assert not card.void_reason, card.notes
    exact = [line for line in card.lines if line.goal == "0"]
    assert len(exact) == 18
    assert not [line for line in exact if not line.is_met], card.notes
