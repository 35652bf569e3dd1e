"""Simulated edges decide most rejections themselves, without an effect on goodput."""

from dataclasses import replace

import pytest

from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario_file import scenario_of
from penstock.simulator.simulation import Simulation

TENANT = {
    "name": "tenant",
    "arrivals": {"rate": 16.0},
    "prompt": {"kind": "lognormal", "mean": 400.0, "sigma": 0.7, "high": 4096},
    "output": {"kind": "lognormal", "mean": 120.0, "sigma": 0.7, "high": 1024},
}


def run(load, *, has_admission_filter=True):
    scenario = scenario_of({"tenants": [TENANT], "seed": 1, "duration": 60.0, "warm_up": 20.0, "drain": 20.0})
    simulation = Simulation(replace(scenario, load=load))
    if not has_admission_filter:
        simulation.mesh.edge.admission_filter = None
    return figures_of(simulation.run())


@pytest.fixture(scope="module")
def overloaded():
    return run(8.0)


def test_most_rejections_under_overload_never_reach_the_queue(overloaded):
    assert overloaded["rejected_by_edges_share"] > 0.6


def test_rejections_by_edges_do_not_reduce_goodput(overloaded):
    without_filter = run(8.0, has_admission_filter=False)
    assert without_filter["rejected_by_edges_share"] == 0
    # Over six seeds the ratio is 0.98 in the mean, and from 0.96 to 1.0.
    assert overloaded["goodput_weighted_tokens_per_s"] > 0.95 * without_filter["goodput_weighted_tokens_per_s"]


def test_edges_reject_nothing_without_overload():
    assert run(0.3)["rejected_by_edges_share"] == 0
