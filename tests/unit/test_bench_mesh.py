"""`tools/bench_mesh`: parsing, slopes, medians, verdicts and the report. No process is started."""

import json
from io import StringIO

import pytest
from rich.console import Console

from mesh_bench.comparison import SystemRun, above_idle
from mesh_bench.native import CompilerMissing, LoadResult, compiled, parse_result
from mesh_bench.peers import DIRECT, PEERS, PENSTOCK, PeerStart
from mesh_bench.points import POINTS
from mesh_bench.report import plot, print_tables
from mesh_bench.summary import judge, slope, summarise


def result(*, requests=100, tokens=100.0, first_us=1_000.0, cpu=None, wrong=0, wall_s=2.0):
    return LoadResult(
        wall_s=wall_s,
        requests=requests,
        tokens=tokens,
        events=int(tokens),
        errors=0,
        wrong=wrong,
        overrun=0,
        first_p50_us=first_us,
        first_p99_us=2 * first_us,
        cpu_us=cpu or {},
    )


def run_of(tier, request_us, token_us, **kinds):
    """A run in which each request costs `request_us` and each of its tokens `token_us`, in the tier `tier`."""
    run = SystemRun(idle_us_s={tier: 400.0}, memory_mb={tier: 100.0})
    for name, point in POINTS.items():
        run.results[name] = result(tokens=100.0 * point.tokens, **kinds)
        run.cpu_us[name] = {tier: 100.0 * (request_us + token_us * point.tokens), "worker": 1e9, "load": 1e9}
    return run


def test_slope_separates_the_cost_of_a_token_from_that_of_a_request():
    assert slope(1_010.0, 1_650.0, 1, 65) == (10.0, 1_000.0)


def test_output_of_the_generator_is_parsed_and_other_text_is_rejected():
    fields = dict.fromkeys(LoadResult.__dataclass_fields__, 0) | {"cpu_us": {"edge": 3.0}}
    assert parse_result(json.dumps(fields)).cpu_us == {"edge": 3.0}
    with pytest.raises(TypeError):
        parse_result(json.dumps({**fields, "unknown": 1}))
    with pytest.raises(ValueError):
        parse_result("connect: Connection refused")


def test_cpu_of_a_point_excludes_idle_cpu_and_is_never_negative():
    measured = result(cpu={"edge": 5_000.0, "queue": 100.0, "load": 7.0}, wall_s=2.0)
    assert above_idle(measured, {"edge": 1_000.0, "queue": 400.0}) == {"edge": 3_000.0, "queue": 0.0, "load": 7.0}


def test_figures_count_the_tiers_between_client_and_worker_and_no_other_process():
    figures = summarise({PENSTOCK: [run_of("edge", 1_000.0, 10.0)]})[PENSTOCK]
    assert (figures.light_token_us, figures.light_request_us) == (10.0, 1_000.0)
    assert figures.loaded_token_us == 10.0 + 1_000.0 / 64
    assert figures.session_edge_token_us == figures.session_token_us == 10.0
    assert figures.max_request_us == 1_010.0
    assert figures.max_rate == 50.0
    assert figures.light_request_tiers_us["edge"] == 1_010.0


def test_figures_are_medians_and_failures_are_sums_over_the_runs():
    runs = [run_of("edge", each, 10.0, wrong=1) for each in (900.0, 5_000.0, 1_000.0)]
    figures = summarise({PENSTOCK: runs})[PENSTOCK]
    assert figures.light_request_us == 1_000.0
    assert figures.failed == 3 * len(POINTS)


def test_added_time_to_first_token_excludes_the_mock_worker_and_the_engine_step():
    runs = {
        DIRECT: [run_of("router", 0.0, 0.0, first_us=100.0)],
        PENSTOCK: [run_of("edge", 1.0, 1.0, first_us=8_100.0)],
        "envoy": [run_of("router", 1.0, 1.0, first_us=600.0)],
    }
    figures = summarise(runs)
    assert figures[PENSTOCK].added_first_p50_us == 8_100.0 - 100.0 - 5_000.0
    assert figures["envoy"].added_first_p50_us == 500.0


def test_a_goal_is_met_at_its_bound_and_missed_above_it():
    peer = run_of("router", 1_000.0, 10.0)
    at_bound = {each.figure: each for each in judge(summarise(_beside(peer, run_of("edge", 3_000.0, 10.0))))}
    above = {each.figure: each for each in judge(summarise(_beside(peer, run_of("edge", 3_064.0, 11.0))))}
    assert at_bound["light us/token / sglang-router"].is_met
    assert at_bound["light us/request / sglang-router"].is_met
    assert not above["light us/token / sglang-router"].is_met
    assert not above["light us/request / sglang-router"].is_met
    assert not at_bound["requests/s"].is_met  # 50 requests/s


def _beside(peer, ours):
    return {"sglang-router": [peer], PENSTOCK: [ours]}


def test_goals_of_unmeasured_figures_and_absent_peers_are_not_judged():
    run = SystemRun(idle_us_s={"edge": 1.0})
    assert [each.figure for each in judge(summarise({PENSTOCK: [run]}))] == ["idle us/s, four tiers"]
    assert judge({}) == []


def test_report_prints_every_system_and_every_verdict(tmp_path):
    figures = summarise(_beside(run_of("router", 1_000.0, 10.0), run_of("edge", 9_000.0, 10.0)))
    text = StringIO()
    print_tables(figures, judge(figures), Console(file=text, width=160))
    assert "sglang-router" in text.getvalue()
    assert text.getvalue().count("missed") == sum(not each.is_met for each in judge(figures))
    plot(figures, tmp_path / "figures.svg")
    assert "us/token" in (tmp_path / "figures.svg").read_text(encoding="utf-8")


def test_a_missing_compiler_is_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerMissing, match="install gcc or set CC") as raised:
        compiled("load", tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_every_peer_has_one_pinned_version_and_a_command_for_its_ports(peer, tmp_path):
    assert all("==" in each for each in peer.requirements)
    start = PeerStart(programs=tmp_path, folder=tmp_path, port=1234, spare_port=1235, upstream_port=1236, key="sk-1")
    command = peer.command(start)
    written = " ".join(each.read_text(encoding="utf-8") for each in tmp_path.iterdir())
    assert "1234" in " ".join(command) + written
    assert "1236" in " ".join(command) + written


def test_a_ratio_to_a_figure_that_is_not_positive_is_not_judged():
    runs = {
        DIRECT: [run_of("router", 0.0, 0.0, first_us=700.0)],
        **_beside(run_of("router", 1.0, 1.0, first_us=600.0), run_of("edge", 1.0, 1.0)),
    }
    assert not [each for each in judge(summarise(runs)) if "TTFT" in each.figure]
