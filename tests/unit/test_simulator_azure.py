"""The example of a recorded chat service keeps the overload guarantees at three and nine times its speed."""

import functools
from dataclasses import replace

from paths import REPO, TRACES
from penstock.simulator.report.figures import figures_of
from penstock.simulator.scenario import QueueSettings
from penstock.simulator.scenario_file import read_scenario
from penstock.simulator.simulation import Simulation

AZURE_EXAMPLE = REPO / "services/penstock/simulator/scenarios/azure.toml"
TRACE = TRACES / "AzureLLMInferenceTrace_conv.csv.gz"
DURATION_S = 120.0


@functools.cache
def figures(folder, load, policy="penstock"):
    scenario = read_scenario(folder / AZURE_EXAMPLE.name)
    scenario = replace(scenario, load=load, duration=DURATION_S, queues=QueueSettings(policy=policy))
    return figures_of(Simulation(scenario).run())


def goodput(folder, load, policy="penstock"):
    return figures(folder, load, policy)["goodput_weighted_tokens_per_s"]


def test_a_recorded_service_at_three_and_nine_times_its_speed_keeps_goodput_and_ttft(tmp_path):
    (tmp_path / AZURE_EXAMPLE.name).symlink_to(AZURE_EXAMPLE)
    (tmp_path / TRACE.name).symlink_to(TRACE)
    peak = max(goodput(tmp_path, load) for load in (2.0, 3.0, 9.0))
    assert goodput(tmp_path, 9.0) >= 0.95 * peak, "three times what two workers serve"
    assert goodput(tmp_path, 9.0, "fifo") < 0.05 * peak
    assert goodput(tmp_path, 3.0) > 2 * goodput(tmp_path, 3.0, "fifo"), "its bursts alone are more than they serve"
    for load in (3.0, 9.0):
        found = figures(tmp_path, load)
        assert found["first_tokens_late_share"] <= 0.01, load
        assert found["engine_tokens_wasted_share"] <= 0.01, load
        assert found["shed"] > 0, load
