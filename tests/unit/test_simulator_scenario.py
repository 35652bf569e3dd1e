"""Scenario files: defaults, errors with the path of the field, arrivals, lengths and traces."""

import ast
import gzip
import json
import tomllib
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from paths import REPO, TRACES
from penstock.simulator.errors import ScenarioError
from penstock.simulator.scenario_file import read_scenario, scenario_of
from penstock.simulator.simulation import Simulation
from penstock.simulator.traffic.arrivals import Bursty, Poisson, RateWindow, RenewalWindow
from penstock.simulator.traffic.demand import Empirical, LogNormal, OfferedRequest
from penstock.simulator.traffic.shared_prefixes import SharedPrefix
from penstock.simulator.traffic.traces import read_azure, read_mooncake, read_servegen

OVERLOAD_EXAMPLE = REPO / "services/penstock/simulator/scenarios/overload.toml"

TENANT_TOML = """
[[tenants]]
name = "a"
arrivals = { rate = 1.0 }
prompt = { tokens = 10 }
output = { tokens = 5 }
"""


def test_the_example_can_be_run_and_shows_the_defaults():
    scenario = read_scenario(OVERLOAD_EXAMPLE)
    assert scenario.load_sweep == (0.5, 1.0, 1.5, 3.0, 10.0)
    bare = scenario_of(tomllib.loads(TENANT_TOML))
    assert [replace(each, slots=256) for each in scenario.workers] == list(bare.workers), "only the slots differ"
    for name in ("queues", "schedulers", "targets", "losses", "link_delay", "loss_detection_delay", "drain"):
        assert getattr(scenario, name) == getattr(bare, name), name


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "tenants"),
        (TENANT_TOML + TENANT_TOML, "tenants"),
        ("sede = 1\n" + TENANT_TOML, "sede"),
        ("duration = 0\n" + TENANT_TOML, "duration"),
        ("warm_up = 60\n" + TENANT_TOML, "warm_up"),
        ("seed = -1\n" + TENANT_TOML, "seed"),
        ("engine = 'torch'\n" + TENANT_TOML, "engine"),
        ("load_sweep = [1.0, 0.0]\n" + TENANT_TOML, "load_sweep.1"),
        (TENANT_TOML.replace("rate", "rte"), "tenants[0].arrivals.rate"),
        (TENANT_TOML.replace("rate = 1.0", "rate = 1.0, on = 3"), "tenants[0].arrivals.on"),
        (TENANT_TOML.replace("rate = 1.0", "rate = true"), "tenants[0].arrivals.rate"),
        (TENANT_TOML.replace("tokens = 5", "tokens = 5.5"), "tenants[0].output.tokens"),
        (TENANT_TOML.replace("tokens = 10", "kind = 'uniform', low = 5, high = 4"), "tenants[0].prompt.high"),
        (TENANT_TOML + "prefix = { tokens = 10, share = 2 }", "tenants[0].prefix.share"),
        (TENANT_TOML + "prefix = { texts = 3 }", "tenants[0].prefix.tokens"),
        (TENANT_TOML + "class = 'vip'", "tenants[0].class"),
        (TENANT_TOML + "client = { retrys = 3 }", "tenants[0].client.retrys"),
        (TENANT_TOML + "trace = { kind = 'azure', path = 'none.csv' }", "tenants[0].trace.path"),
        (TENANT_TOML + "[[workers]]\nstep_time = { base_ms = 0 }", "workers[0].step_time.base_ms"),
        (TENANT_TOML + "[[losses]]\nworker = 1\nat = 3.0", "losses[0].worker"),
        (TENANT_TOML + "[queues]\npolicy = 'magic'", "queues.policy"),
        (TENANT_TOML + "[queues]\npolicy = 'codel'\nage_limit = 1.0", "queues.age_limit"),
        (TENANT_TOML + "[queues]\nshards = 'two'", "queues.shards"),
    ],
)
def test_an_error_names_the_path_of_its_field(text, field):
    with pytest.raises(ScenarioError) as failure:
        scenario_of(tomllib.loads(text))
    assert failure.value.field == field
    assert str(failure.value).startswith(f"{field}: ")


def test_an_error_names_a_file_that_is_not_toml(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("duration = ", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"broken\.toml cannot be read"):
        read_scenario(path)


def times(arrivals, until, load=1.0):
    found = []
    for at in arrivals.times(Random(7), load):
        if at >= until:
            return found
        found.append(at)
    return found


def test_a_window_multiplies_the_rate_and_nothing_else():
    found = times(Poisson(100.0, (RateWindow(10.0, 20.0, 3.0), RateWindow(20.0, 30.0, 0.0))), 40.0)
    counts = [sum(begin <= at < begin + 10 for at in found) for begin in (0, 10, 20, 30)]
    assert counts[2] == 0
    assert 900 < counts[0] < 1100
    assert 900 < counts[3] < 1100
    assert 2800 < counts[1] < 3200
    assert found == sorted(found)


def test_bursts_keep_the_mean_rate():
    found = times(Bursty(10.0, mean_on_s=1.0, mean_off_s=4.0), 2_000.0, load=2.0)
    assert 18.0 < len(found) / 2_000 < 22.0
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert sum(gap > 1.0 for gap in gaps) > 200, "there are pauses that a Poisson process of this rate never has"


@pytest.mark.parametrize(("family", "shape"), [("gamma", 0.5), ("weibull", 0.7), ("", 1.0)])
def test_gaps_of_every_family_have_the_mean_of_their_rate(family, shape):
    window, rng = RenewalWindow(0.0, 600.0, 4.0, family, shape), Random(3)
    assert sum(window.gap(rng) for _ in range(20_000)) / 20_000 == pytest.approx(0.25, rel=0.05)


def test_a_lognormal_mean_is_that_of_the_tokens():
    rng = Random(1)
    drawn = [LogNormal(400.0, 0.7, 1, 100_000).draw(rng) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(400, rel=0.03)


def test_an_empirical_distribution_draws_by_share():
    rng = Random(1)
    drawn = [Empirical({5: 0.75, 9: 0.25}).draw(rng) for _ in range(4_000)]
    assert set(drawn) == {5, 9}
    assert drawn.count(5) == pytest.approx(3_000, rel=0.05)


def test_traces_are_read_as_they_were_recorded(tmp_path):
    path = tmp_path / "azure.csv.gz"
    rows = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:50.5000000,30,4",
        "2023-11-16 18:15:46.0000000,7,0",
    ]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    assert list(read_azure(path).requests("", load=2.0)) == [OfferedRequest(0.0, 7, 1), OfferedRequest(2.25, 30, 4)]
    path = tmp_path / "mooncake.jsonl"
    path.write_text(json.dumps({"timestamp": 3000, "input_length": 900, "output_length": 2, "hash_ids": [4, 7]}) + "\n")
    assert list(read_mooncake(path).requests("", load=1.0)) == [(3.0, 900, 2, SharedPrefix((4, 7), 512))]


def test_a_servegen_folder_gives_its_busiest_clients(tmp_path):
    lengths = {"input_tokens": "{30: 1.0}", "output_tokens": "{4: 1.0}"}
    for number, rate in ((0, 0.1), (1, 5.0), (2, 1.0)):
        rows = f"0,{rate},1.0,Gamma,1.0,1.0\n600,0,0,,0,0\n"
        (tmp_path / f"chunk-{number}-trace.csv").write_text(rows)
        absent = {"600": {"input_tokens": "{}", "output_tokens": "{}"}}
        (tmp_path / f"chunk-{number}-dataset.json").write_text(json.dumps({"0": lengths, **absent}))
    found = read_servegen(tmp_path, start=300.0, clients=2)
    assert list(found) == ["1", "2"]
    requests = list(found["1"].requests("seed", load=1.0))
    assert len(requests) == pytest.approx(1_500, rel=0.1)
    assert requests[-1].at < 300.0
    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(30, 4)}


@pytest.mark.parametrize(
    ("kind", "content", "wrong"),
    [
        ("azure", None, "cannot be read: No such file or directory"),
        ("azure", "a,b\n1,2\n", "it has no 'TIMESTAMP'"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "it has no requests"),
        (
            "azure",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0000000,3\n",
            "is not a trace in azure format",
        ),
        ("mooncake", "", "it has no requests"),
        ("mooncake", "[]\n", "is not a trace in mooncake format"),
        ("mooncake", '{"timestamp": 0}\n', "it has no 'input_length'"),
        ("mooncake", '{"timestamp": 0, "input_length": null}\n', "is not a trace in mooncake format"),
        ("servegen", "", "cannot be read: Not a directory"),
    ],
)
def test_an_invalid_trace_is_rejected_with_its_file_and_reason(tmp_path, kind, content, wrong):
    if content is not None:
        (tmp_path / "trace").write_text(content)
    with pytest.raises(ScenarioError) as failure:
        scenario_of({"tenants": [{"name": "a", "trace": {"kind": kind, "path": "trace"}}]}, tmp_path)
    assert str(failure.value).startswith(f"tenants[0].trace.path: {tmp_path / 'trace'}")
    assert wrong in str(failure.value)


def test_a_servegen_folder_without_clients_is_rejected(tmp_path):
    with pytest.raises(ScenarioError, match="no client has arrivals and lengths from 60 s on"):
        scenario_of({"tenants": [{"name": "a", "trace": {"kind": "servegen", "path": ".", "start": 60}}]}, tmp_path)


@pytest.mark.parametrize("name", ["azure", "mooncake", "servegen"])
def test_an_example_of_a_public_trace_runs_once_the_trace_is_there(tmp_path, name):
    text = (OVERLOAD_EXAMPLE.parent / f"{name}.toml").read_text(encoding="utf-8")
    trace = tomllib.loads(text)["tenants"][0]["trace"]["path"]
    shipped = OVERLOAD_EXAMPLE.parent / trace
    (tmp_path / trace).symlink_to(shipped if shipped.exists() else TRACES / trace)
    (tmp_path / "scenario.toml").write_text(text, encoding="utf-8")
    scenario = replace(read_scenario(tmp_path / "scenario.toml"), duration=20.0, warm_up=0.0, load=1.0)
    outcomes = [each.transcript.outcome for each in Simulation(scenario).run().ledger.requests]
    assert outcomes.count("ok") >= 6


def test_azures_recorded_requests_arrive_at_their_times():
    requests = list(read_azure(TRACES / "AzureLLMInferenceTrace_conv.csv.gz").requests("", load=1.0))
    assert requests[0] == OfferedRequest(0.0, 374, 44)
    assert (len(requests), requests[-1].prompt_tokens, requests[-1].output_tokens) == (5_397, 4_084, 47)
    assert requests[-1].at == pytest.approx(1_099.872155)


@pytest.mark.parametrize(
    ("folder", "name", "count", "last", "repeating"),
    [(OVERLOAD_EXAMPLE.parent, "conversation", 339, 117.0, 35), (TRACES, "synthetic", 135, 39.739, 8)],
)
def test_some_of_mooncakes_recorded_turns_start_with_earlier_ones(folder, name, count, last, repeating):
    requests = list(read_mooncake(folder / f"{name}_trace.jsonl.gz").requests("", load=1.0))
    assert (len(requests), requests[-1].at) == (count, last)
    assert all(0 <= request.prefix.tokens - request.prompt_tokens < request.prefix.piece_tokens for request in requests)
    seen, found = set(), 0
    for request in requests:
        prefixes = {request.prefix.piece_ids[: at + 1] for at in range(len(request.prefix.piece_ids))}
        found += len(prefixes & seen) > 1  # more than the first part, which many requests share
        seen |= prefixes
    assert found == repeating


def test_servegens_recorded_clients_are_read_busiest_first_with_their_own_lengths():
    found = read_servegen(TRACES / "deepseek-r1", start=43_200.0, clients=2)
    assert list(found) == ["8", "53"], "of 8, 50 and 53"
    lengths = json.loads((TRACES / "deepseek-r1" / "chunk-8-dataset.json").read_text())["43200"]
    recorded = ast.literal_eval(lengths["input_tokens"])
    requests = list(found["8"].requests("seed", load=1.0))
    assert len(requests) == pytest.approx(0.2 * 3_600, rel=0.2)
    assert {request.prompt_tokens for request in requests} <= recorded.keys()
