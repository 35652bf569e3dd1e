"""Card lines of the surge proof: rejections by time, and the cost of one more rejection."""

from dataclasses import replace

import pytest

from penstock.bench.report import Slo, report_of
from penstock.bench.transcript import OK, Transcript
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.live.overload.rejection_floor import RejectionFloor
from penstock.proofs.live.overload.surge import (
    LONG_OUTPUT_TOKENS,
    SHORT_OUTPUT_DIVISOR,
    UNSATURATED_LOAD,
    SurgeOptions,
    base_rate,
    scenario,
    unsaturated_scenario,
)
from penstock.proofs.live.overload.surge_lines import (
    JUDGED_API,
    LoadResult,
    admission_cost_lines,
    cpu_s_per_admitted,
    cpu_us_per_rejected,
    drift_line,
    edge_rejection_lines,
    goodput_lines,
    rejection_cost_lines,
    rejection_lines,
    surge_void_reason,
)

DURATION_S = 10.0
REJECTION_FLOOR = RejectionFloor(cpu_s=0.0002, latencies_s=[0.001, 0.002])


def answered(number, started=1.0):
    transcript = Transcript(number=number, started_at=started)
    transcript.record(started + 0.5, 0, 4)
    transcript.end(started + 1.0, OK)
    return transcript


def rejected(number, after=0.004, *, is_accepted=False):
    transcript = Transcript(number=number, started_at=2.0, is_accepted=is_accepted)
    transcript.end(2.0 + after, "OVERLOADED", "RESOURCE_EXHAUSTED", retry_after=1.0)
    return transcript


def offered(transcripts, tokens=0, **cpu):
    return LoadResult(
        figures=report_of(transcripts, DURATION_S, {}, Slo()), transcripts=transcripts, good_tokens=tokens, cpu_s=cpu
    )


def by_figure(lines):
    return {line.figure: line for line in lines}


def test_goodput_may_deviate_from_the_simulated_by_a_tenth():
    real = offered([answered(number) for number in range(20)], tokens=1_000)
    simulated = {"goodput_requests_per_s": 2.1, "goodput_weighted_tokens_per_s": 120.0, "ttft_s": {"p99": 0.5}}
    lines = by_figure(goodput_lines(real, simulated))
    assert lines["goodput in requests, deviation from the simulated"].is_met
    assert not lines["goodput in weighted tokens, deviation from the simulated"].is_met
    assert lines["P99 TTFT"].measured == 0.5


def test_the_cost_of_a_rejection_is_that_of_additional_ones_without_requests_that_were_admitted_first():
    real = offered(
        [rejected(number) for number in range(10)] + [rejected(10, 2.0, is_accepted=True)], edge=1.0, auth=0.5
    )
    flood = offered([rejected(number) for number in range(110)], edge=1.01, auth=0.5)
    lines = by_figure(
        [
            *rejection_lines(real, flood),
            *rejection_cost_lines(JUDGED_API, real, flood, REJECTION_FLOOR, cpu_s_per_admission={}),
        ]
    )
    assert (lines["rejected at 3x"].measured, lines["admitted at 3x and rejected later"].measured) == (10, 1)
    assert lines["session: P99 of a rejection"].is_met
    assert round(lines["session: CPU of a rejection, edge"].measured) == 100
    assert lines["session: CPU of a rejection, all tiers"].is_met


def test_the_simulated_scenario_has_the_processes_of_the_mesh():
    world = scenario(SurgeOptions(seconds=20.0), MeshOptions(queues=2, schedulers=3, workers=4))
    assert (world.queues.shards, world.schedulers.count, world.worker_count) == (2, 3, 4)
    assert world.duration - world.warm_up == 20.0


def test_sessions_are_judged_and_other_apis_are_reported_with_their_floor():
    real = offered([rejected(number, after=0.5) for number in range(10)], edge=1.0)
    flood = offered([rejected(number, after=0.5) for number in range(110)], edge=2.0)
    missed = {
        api: [
            line
            for line in rejection_cost_lines(api, real, flood, REJECTION_FLOOR, cpu_s_per_admission={})
            if not line.is_met
        ]
        for api in (JUDGED_API, "grpc")
    }
    assert (len(missed[JUDGED_API]), len(missed["grpc"])) == (2, 0)
    lines = by_figure(rejection_cost_lines("grpc", real, flood, REJECTION_FLOOR, cpu_s_per_admission={}))
    assert [
        lines[f"call: {floor}"].measured for floor in ("CPU of the rejection floor", "P99 of the rejection floor")
    ] == [200, 0.00199]


def test_rejections_by_edges_alone_are_reported_as_a_share():
    real = replace(offered([rejected(number) for number in range(10)], edge=1.0), rejected_by_edges=4.0)
    flood = replace(offered([rejected(number) for number in range(110)], edge=1.0), rejected_by_edges=99.0)
    simulated = {"rejected_by_edges_share": 0.85}
    lines = by_figure([*edge_rejection_lines(3.0, real, simulated), *edge_rejection_lines(8.0, flood, simulated)])
    shares = [lines[f"rejected by the edge alone at {load}"].measured for load in ("3x", "8x", "8x, simulated")]
    assert shares == [40.0, 90.0, 85.0]


def test_clients_that_cannot_keep_up_make_the_run_void_and_only_their_lag_is_reported():
    real = offered([rejected(number) for number in range(10)], edge=1.0)
    late = replace(offered([rejected(number) for number in range(12)], edge=9.0), client_lag_s=40.0)
    assert not surge_void_reason(real, real)
    assert "40.0 s too late" in surge_void_reason(real, late)
    [line] = rejection_cost_lines("completions", real, late, REJECTION_FLOOR, cpu_s_per_admission={})
    assert (line.measured, line.goal) == (40.0, "")


def test_the_cost_of_additional_admitted_requests_is_subtracted():
    few = offered([answered(number) for number in range(10)], edge=1.0, auth=0.1)
    many = offered([answered(number) for number in range(60)], edge=1.1, auth=0.2)
    assert cpu_s_per_admitted(few.cost, many.cost) == pytest.approx({"edge": 0.002, "auth": 0.002})
    real = offered([answered(number) for number in range(10)], edge=1.0, auth=0.1)
    flood = offered(
        [answered(0) for _ in range(15)] + [rejected(number) for number in range(100)], edge=1.02, auth=0.11
    )
    admission_cpu_s = cpu_s_per_admitted(few.cost, many.cost)
    lines = by_figure(
        rejection_cost_lines(JUDGED_API, real, flood, REJECTION_FLOOR, cpu_s_per_admission=admission_cpu_s)
    )
    costs = [lines[f"session: CPU of a rejection, {tier}"].measured for tier in ("edge", "auth")]
    assert costs == pytest.approx([100, 0])
    assert lines["session: CPU of a rejection with admitted requests"].measured == pytest.approx(300)
    counts = by_figure(admission_cost_lines(few, many, {3.0: real, 8.0: flood}))
    assert [counts[f"admitted at {load}"].measured for load in ("3x", "8x")] == [10, 15]


def test_fewer_admitted_requests_make_rejections_more_expensive():
    real = offered([answered(number) for number in range(20)], edge=1.0)
    flood = offered([rejected(number) for number in range(100)], edge=1.0)
    assert cpu_us_per_rejected(real.cost, flood.cost, {"edge": 0.001}) == pytest.approx({"edge": 200})


def test_a_machine_that_slows_down_is_compared_with_before_and_after():
    real = offered([rejected(number) for number in range(10)], edge=1.0)
    flood = offered([rejected(number) for number in range(110)], edge=1.11)
    again = offered([rejected(number) for number in range(10)], edge=1.2)
    assert drift_line(real, again).measured == pytest.approx(20)
    lines = by_figure(
        rejection_cost_lines(JUDGED_API, real, flood, REJECTION_FLOOR, repeated=again, cpu_s_per_admission={})
    )
    assert lines["session: CPU of a rejection, all tiers"].measured == pytest.approx(100)


def test_the_unsaturated_loads_have_equal_tokens_and_are_below_capacity():
    world = scenario(SurgeOptions(seconds=20.0), MeshOptions(workers=2))
    tokens = [
        load * base_rate(each) * each.tenants[0].demand.output_lengths.tokens
        for each, load in (
            (unsaturated_scenario(world, LONG_OUTPUT_TOKENS), UNSATURATED_LOAD),
            (
                unsaturated_scenario(world, LONG_OUTPUT_TOKENS // SHORT_OUTPUT_DIVISOR),
                UNSATURATED_LOAD * SHORT_OUTPUT_DIVISOR,
            ),
        )
    ]
    assert tokens[0] == tokens[1]
    assert UNSATURATED_LOAD < 1
