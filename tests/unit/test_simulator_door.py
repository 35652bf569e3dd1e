"""What simulated edges refuse by themselves: most of it where much is refused, and nothing that changes the rest."""

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


def test_most_of_what_a_flood_is_refused_never_reaches_the_queue(flooded):
    assert flooded["rejected_by_edges_share"] > 0.7


def test_edges_that_refuse_by_themselves_let_in_as_much(flooded):
    asked = run(8.0, door=False)
    assert asked["rejected_by_edges_share"] == 0
    assert flooded["goodput_weighted_tokens_per_s"] > 0.97 * asked["goodput_weighted_tokens_per_s"]


def test_where_there_is_room_for_all_nobody_is_refused_at_the_door():
    assert run(0.3)["rejected_by_edges_share"] == 0
