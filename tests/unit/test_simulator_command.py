"""`penstock simulate`, from the scenario file to the figures."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from penstock.cli.__main__ import cli
from penstock.cli.planning import capacity_plan
from penstock.simulator.capacity_plan import MAX_WORKERS, CapacityPlan, CapacityTrial, knee_load
from penstock.simulator.scenario_file import scenario_of

SCENARIO_TOML = """
duration = 4.0
seed = 3
[slo]
ttft = 0.5
[[tenants]]
name = "chat"
class = "interactive"
arrivals = { rate = 10.0 }
prompt = { tokens = 100 }
output = { tokens = 10 }
[[tenants]]
name = "night"
class = "batch"
arrivals = { rate = 5.0 }
prompt = { kind = "uniform", low = 10, high = 500 }
output = { tokens = 10 }
"""


def invoke(*args):
    return CliRunner().invoke(cli, ["simulate", *map(str, args)])


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO_TOML, encoding="utf-8")
    return path


def test_json_has_the_figures_of_bench_and_the_simulators_own(scenario):
    result = invoke(scenario, "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    for name in ("requests", "shed_by_reason", "ttft_s", "tpot_s", "goodput_share", "slo"):
        assert name in figures, name
    for name in ("engine_tokens_wasted", "queue_wait_prediction", "service_by_tenant", "max_service_gap"):
        assert name in figures, name
    assert figures["seed"] == 3
    assert figures["completed"] == figures["requests"] > 30


def test_the_seed_of_the_command_line_takes_precedence(scenario):
    assert json.loads(invoke(scenario, "--json", "--seed", 9).stdout)["seed"] == 9


def test_no_order_of_a_set_reaches_the_report(scenario):
    def report(hash_seed):
        command = [sys.executable, "-m", "penstock.cli", "simulate", scenario, "--json"]
        return subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        ).stdout

    assert report("1") == report("2")


def test_an_example_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = " ".join(invoke("azure").stderr.split())
    assert "scenarios/AzureLLMInferenceTrace_conv.csv.gz cannot be read" in message, (
        "the trace is not part of the package"
    )
    result = invoke("asure.toml")
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert (
        "asure.toml is neither a file nor an example; the examples are agents, azure, batch, code_completion, mooncake"
        in message
    )


def test_a_plot_is_written_and_the_figures_are_printed(scenario, tmp_path):
    plot = tmp_path / "small.svg"
    result = invoke(scenario, "--plot", plot)
    assert result.exit_code == 0, result.output
    assert "requests completed" in result.stdout
    assert "max service gap between backlogged tenants" in result.stdout
    drawn = plot.read_text(encoding="utf-8")
    assert "<svg" in drawn
    panels = "Requests, by arrival", "Time to first token, by arrival", "Service by tenant", "Tickets waiting, by class"
    lines = "within the SLO", "P50", "P99", "chat", "night", "interactive", "batch"
    assert [text for text in (*panels, *lines) if f"<!-- {text} -->" not in drawn] == []


def test_a_sweep_runs_multiples_of_the_knee(scenario, tmp_path):
    scenario.write_text("load_sweep = [0.5, 1.5]\n" + SCENARIO_TOML, encoding="utf-8")
    result = invoke(scenario, "--json", "--plot", tmp_path / "sweep.png")
    assert result.exit_code == 0, result.output
    swept = json.loads(result.stdout)
    assert [run["load"] / swept["knee_load"] for run in swept["runs"]] == pytest.approx([0.5, 1.5])
    assert (tmp_path / "sweep.png").stat().st_size > 10_000


def test_an_invalid_scenario_names_its_field(scenario):
    scenario.write_text(SCENARIO_TOML.replace("rate = 10.0", "rate = -1"), encoding="utf-8")
    result = invoke(scenario)
    assert result.exit_code == 2
    assert "tenants[0].arrivals.rate: must be above 0" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "picture.xyz"], "picture.xyz must end in .png or .svg"),
        (["--plot", "nowhere/picture.png"], "the folder nowhere does not exist"),
        (["--plan", "nan"], "nan is not a finite number"),
        (["--plan", "0.9", "--compare", "fifo"], "--plan and --compare exclude each other"),
        (["--calibrate"], "a SCENARIO and --calibrate exclude each other"),
        (["--calibrate", "--model", "no-such-model"], "no-such-model is no folder"),
    ],
)
def test_invalid_options_are_rejected_before_a_run(scenario, options, message):
    result = invoke(scenario, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in " ".join(result.stderr.split())


def test_the_knee_of_the_reference_model_is_where_it_was_measured():
    """About 16 requests/s, for one worker of the reference step times at log-normal lengths of 400 and 120."""
    lengths = {"kind": "lognormal", "sigma": 0.7, "high": 4096}
    tenant = {
        "name": "a",
        "arrivals": {"rate": 16.0},
        "prompt": {"mean": 400.0, **lengths},
        "output": {"mean": 120.0, **lengths},
    }
    scenario = scenario_of({"tenants": [tenant], "duration": 60.0, "workers": [{"slots": 64}]})
    assert 0.9 < knee_load(scenario) < 1.25


def test_a_plan_has_the_fewest_workers_and_the_result_of_each_number(scenario):
    found = json.loads(invoke(scenario, "--plan", 0.99, "--json").stdout)
    assert found["workers"] >= 1
    assert found["trials"][str(found["workers"])]["good_share"] >= 0.99


def test_a_plan_prints_its_target_and_plots_its_trials(scenario, tmp_path):
    scenario.write_text("load = 20.0\n" + SCENARIO_TOML, encoding="utf-8")
    result = invoke(scenario, "--plan", 0.95, "--plot", tmp_path / "plan.svg")
    assert result.exit_code == 0, result.output
    assert "of requests within TTFT 500 ms and TPOT 100 ms" in " ".join(result.stdout.split())
    rows = [line.split() for line in result.stdout.splitlines() if "%" in line and line.split()[0].isdigit()]
    counts = [int(row[0]) for row in rows]
    assert counts == sorted(counts)
    assert len(counts) > 1, "one worker is not enough"
    assert "<svg" in (tmp_path / "plan.svg").read_text(encoding="utf-8")


def test_a_plan_without_a_solution_exits_with_1(scenario, monkeypatch):
    monkeypatch.setattr(
        capacity_plan,
        "plan_capacity",
        lambda _, wanted, __: CapacityPlan(wanted, {MAX_WORKERS: CapacityTrial(good_share=0.4)}),
    )
    result = invoke(scenario, "--plan", 0.99)
    assert result.exit_code == 1
    assert f"needs more than {MAX_WORKERS} workers" in " ".join(result.stdout.split())


def test_two_policies_are_plotted_together(scenario, tmp_path):
    plot = tmp_path / "comparison.svg"
    assert invoke(scenario, "--compare", "fifo", "--plot", plot).exit_code == 0
    text = plot.read_text(encoding="utf-8")
    assert "<svg" in text


@pytest.mark.parametrize(
    "wrong",
    [("--compare", "fifo"), ("--compare", "penstock", "--plot", "x.svg"), ("--compare", "lottery", "--plot", "x.svg")],
)
def test_an_invalid_comparison_is_rejected(scenario, wrong):
    result = invoke(scenario, *wrong)
    assert result.exit_code == 2
    assert "--plot" in result.output or "must be one of" in result.output
