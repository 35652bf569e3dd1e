"""Simulated workers that scale and roll: short runs of the proof, and runs that must miss its goals."""

from dataclasses import replace

import pytest

from paths import TRACES
from penstock.proofs.simulated.autoscale import (
    LOAD_TIME_S,
    MAX_WAIT_FROM_ZERO_S,
    ROLL_DEMAND,
    SMALL_POOL,
    hour_lines,
    hour_scenario,
    roll_lines,
    roll_scenario,
    silent_decisions,
    simulate_hour,
    simulate_roll,
)
from penstock.simulator.autoscaling.clairvoyant import PlannedWorker
from penstock.simulator.scenario import AutoscaleSettings, RollSettings, SimTenant
from penstock.simulator.traffic.arrivals import Poisson
from penstock.simulator.traffic.traces import read_azure

SILENCE = (90.0, 130.0)  # s
ROLLED, ROLL_LOAD_TIME_S, ROLL_DURATION_S = 6, 5.0, 250.0


@pytest.fixture(scope="module")
def run():
    """The first minutes of the trace, from 0 and back to 0."""
    demand = read_azure(TRACES / "AzureLLMInferenceTrace_conv.csv.gz")
    autoscale = AutoscaleSettings(load_time=LOAD_TIME_S, silences=(SILENCE,))
    return simulate_hour(replace(hour_scenario(SMALL_POOL, demand), duration=160.0, autoscale=autoscale))


def missed(lines):
    return [each.figure.partition(": ")[2] for each in lines if not each.is_met]


def small_roll(**settings):
    worker = replace(roll_scenario().workers[0], count=ROLLED)
    roll = RollSettings(**{"begins_at": 5.0, "max_unavailable": 1, "load_time": ROLL_LOAD_TIME_S, **settings})
    tenants = (SimTenant(name="chat", demand=replace(ROLL_DEMAND, arrivals=Poisson(0.5))),)
    return simulate_roll(
        replace(roll_scenario(), workers=(worker,), roll=roll, tenants=tenants, duration=ROLL_DURATION_S)
    )


def test_workers_follow_the_trace_from_0_and_back_to_0(run):
    assert run.requests > 500
    assert (run.lost, run.runs_cut, run.pods_at_end) == (0, 0, 0)
    assert 100 < len(run.waits_from_zero) < run.requests
    assert max(run.waits_from_zero) <= MAX_WAIT_FROM_ZERO_S
    assert missed(hour_lines(SMALL_POOL, run, [PlannedWorker(0.0, run.pod_seconds)])) == []


def test_a_silent_queue_changes_no_number_of_workers(run):
    silent = silent_decisions(run.decisions)
    assert all(SILENCE[0] <= each.at < SILENCE[1] + 15.0 for each in silent)
    assert len(silent) >= 2
    assert {each.wanted for each in silent} == {silent[0].wanted}
    assert silent[0].wanted > 0


def test_lost_requests_late_workers_and_idle_workers_miss_the_goals(run):
    plan = [PlannedWorker(0.0, 0.8 * run.pod_seconds)]
    changed = [each._replace(wanted=place) for place, each in enumerate(run.decisions)]
    late = [MAX_WAIT_FROM_ZERO_S + 1]
    wrong = run._replace(lost=1, runs_cut=1, pods_at_end=1, waits_from_zero=late, decisions=changed)
    assert missed(hour_lines(SMALL_POOL, wrong, plan)) == [
        "requests lost",
        "wait from zero, P99",
        "worker hours / clairvoyant's",
        "workers at the end",
        "streams cut on the way down",
        "of them that changed the number",
    ]


def test_all_workers_are_replaced_one_by_one_without_a_loss():
    rolled = small_roll()
    assert (rolled.lost, rolled.runs_cut) == (0, 0)
    assert ROLLED * ROLL_LOAD_TIME_S < rolled.took < ROLL_DURATION_S
    assert missed(roll_lines(rolled)) == []
    wrong = rolled._replace(lost=1, took=float("inf"), good=0)
    assert missed(roll_lines(wrong)) == ["requests lost", "goodput", "duration"]


def test_runs_beyond_the_grace_of_a_drain_are_counted_as_cut():
    rolled = small_roll(drain_grace=0.0)
    assert rolled.runs_cut > 0
    assert "streams cut" in missed(roll_lines(rolled))
