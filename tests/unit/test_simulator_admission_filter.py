"""Simulated edges decide most rejections themselves, without an effect on goodput."""

from dataclasses import replace

import pytest

from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario_file import scenario_of
from penstock.simulator.simulation import Simulation

ASKING = {
    "name": "tenant",
    "arrivals": {"rate": 16.0},
    "prompt": {"kind": "lognormal", "mean": 400.0, "sigma": 0.7, "high": 4096},
    "output": {"kind": "lognormal", "mean": 120.0, "sigma": 0.7, "high": 1024},
}


def run(load, *, door=True):
    scenario = scenario_of({"tenants": [ASKING], "seed": 1, "duration": 60.0, "warm_up": 20.0, "drain": 20.0})
    simulation = Simulation(replace(scenario, load=load))
    if not door:
        simulation.mesh.edge.admission_filter = None
    return figures_of(simulation.run())


@pytest.fixture(scope="module")
def flooded():
    return run(8.0)


def test_most_rejections_under_overload_never_reach_the_queue(flooded):
    assert flooded["rejected_by_edges_share"] > 0.6


def test_rejections_by_edges_do_not_reduce_goodput(flooded):
    asked = run(8.0, door=False)
    assert asked["rejected_by_edges_share"] == 0
    # Over six seeds the ratio is 0.98 in the mean, and from 0.96 to 1.0.
    assert flooded["goodput_weighted_tokens_per_s"] > 0.95 * asked["goodput_weighted_tokens_per_s"]


def test_edges_reject_nothing_without_overload():
    assert run(0.3)["rejected_by_edges_share"] == 0
