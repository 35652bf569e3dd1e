"""What the surge makes of histories: who was refused at the door, who later, what one more refusal costs."""

from dataclasses import replace

import pytest

from penstock.bench.report import Slo, report_of
from penstock.bench.transcript import OK, Transcript
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.live.rejection_floor import RejectionFloor
from penstock.proofs.live.surge import (
    LONG_OUTPUT_TOKENS,
    SHORT_OUTPUT_DIVISOR,
    UNSATURATED_LOAD,
    SurgeOptions,
    base_rate,
    scenario,
    unsaturated_scenario,
)
from penstock.proofs.live.surge_lines import (
    JUDGED_DRIVER,
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

SECONDS = 10.0
FLOOR = RejectionFloor(cpu_s=0.0002, latencies_s=[0.001, 0.002])


def answered(number, started=1.0):
    history = Transcript(number=number, started_at=started)
    history.record(started + 0.5, 0, 4)
    history.end(started + 1.0, OK)
    return history


def refused(number, after=0.004, *, was_let_in=False):
    history = Transcript(number=number, started_at=2.0, prompt_tokens=8 if was_let_in else 0)
    history.end(2.0 + after, "OVERLOADED", "RESOURCE_EXHAUSTED", retry_after=1.0)
    return history


def offered(histories, tokens=0, **cpu):
    return LoadResult(
        figures=report_of(histories, SECONDS, {}, Slo()), histories=histories, good_tokens=tokens, cpu_s=cpu
    )


def by_figure(lines):
    return {line.figure: line for line in lines}


def test_goodput_is_held_against_the_simulated_within_a_tenth():
    real = offered([answered(number) for number in range(20)], tokens=1_000)
    simulated = {"goodput_requests_per_s": 2.1, "goodput_weighted_tokens_per_s": 120.0, "ttft_s": {"p99": 0.5}}
    lines = by_figure(goodput_lines(real, simulated))
    assert lines["goodput in requests off the simulated"].is_met
    assert not lines["goodput in weighted tokens off the simulated"].is_met
    assert lines["P99 to the first token"].measured == 0.5


def test_a_refusal_costs_what_more_of_them_cost_more_and_who_was_let_in_first_is_none():
    real = offered([refused(number) for number in range(10)] + [refused(10, 2.0, was_let_in=True)], edge=1.0, auth=0.5)
    flood = offered([refused(number) for number in range(110)], edge=1.01, auth=0.5)
    lines = by_figure(
        [
            *rejection_lines(real, flood),
            *rejection_cost_lines(JUDGED_DRIVER, real, flood, FLOOR, cpu_s_per_admission={}),
        ]
    )
    assert (lines["refused at 3x"].measured, lines["let in at 3x and refused later"].measured) == (10, 1)
    assert lines["session: P99 until a refusal"].is_met
    assert round(lines["session: CPU of a refusal, edge"].measured) == 100
    assert lines["session: CPU of a refusal, over all tiers"].is_met


def test_the_world_that_is_simulated_has_the_processes_that_are_started():
    world = scenario(SurgeOptions(seconds=20.0), MeshOptions(queues=2, schedulers=3, workers=4))
    assert (world.queues.shards, world.schedulers.count, world.worker_count) == (2, 3, 4)
    assert world.duration - world.warm_up == 20.0


def test_sessions_are_judged_and_other_ways_told_each_beside_its_floor():
    real = offered([refused(number, after=0.5) for number in range(10)], edge=1.0)
    flood = offered([refused(number, after=0.5) for number in range(110)], edge=2.0)
    missed = {
        way: [line for line in rejection_cost_lines(way, real, flood, FLOOR, cpu_s_per_admission={}) if not line.is_met]
        for way in (JUDGED_DRIVER, "call")
    }
    assert (len(missed[JUDGED_DRIVER]), len(missed["call"])) == (2, 0)
    lines = by_figure(rejection_cost_lines("call", real, flood, FLOOR, cpu_s_per_admission={}))
    assert [lines[f"call: {floor}"].measured for floor in ("CPU of an empty one", "P99 until an empty one is")] == [
        200,
        0.002,
    ]


def test_what_edges_refuse_alone_is_told_as_a_share():
    real = replace(offered([refused(number) for number in range(10)], edge=1.0), rejected_by_edges=4.0)
    flood = replace(offered([refused(number) for number in range(110)], edge=1.0), rejected_by_edges=99.0)
    simulated = {"rejected_by_edges_share": 0.85}
    lines = by_figure([*edge_rejection_lines(3.0, real, simulated), *edge_rejection_lines(8.0, flood, simulated)])
    shares = [lines[f"refused by the edge alone at {load}"].measured for load in ("3x", "8x", "8x as simulated")]
    assert shares == [40.0, 90.0, 85.0]


def test_clients_that_cannot_keep_up_prove_nothing_and_tell_their_lag_alone():
    real = offered([refused(number) for number in range(10)], edge=1.0)
    late = replace(offered([refused(number) for number in range(12)], edge=9.0), client_lag_s=40.0)
    assert not surge_void_reason(real, real)
    assert "40.0 s too late" in surge_void_reason(real, late)
    [line] = rejection_cost_lines("HTTP", real, late, FLOOR, cpu_s_per_admission={})
    assert (line.measured, line.goal) == (40.0, "")


def test_what_was_let_in_beside_more_refusals_is_taken_out_by_what_one_costs_where_nobody_is_refused():
    few = offered([answered(number) for number in range(10)], edge=1.0, auth=0.1)
    many = offered([answered(number) for number in range(60)], edge=1.1, auth=0.2)
    assert cpu_s_per_admitted(few.cost, many.cost) == pytest.approx({"edge": 0.002, "auth": 0.002})
    real = offered([answered(number) for number in range(10)], edge=1.0, auth=0.1)
    flood = offered([answered(0) for _ in range(15)] + [refused(number) for number in range(100)], edge=1.02, auth=0.11)
    let_in = cpu_s_per_admitted(few.cost, many.cost)
    lines = by_figure(rejection_cost_lines(JUDGED_DRIVER, real, flood, FLOOR, cpu_s_per_admission=let_in))
    costs = [lines[f"session: CPU of a refusal, {tier}"].measured for tier in ("edge", "auth")]
    assert costs == pytest.approx([100, 0])
    assert lines["session: CPU of a refusal with what was let in beside"].measured == pytest.approx(300)
    counts = by_figure(admission_cost_lines(few, many, {3.0: real, 8.0: flood}))
    assert [counts[f"let in at {load}"].measured for load in ("3x", "8x")] == [10, 15]


def test_fewer_that_are_let_in_make_refusals_dearer():
    real = offered([answered(number) for number in range(20)], edge=1.0)
    flood = offered([refused(number) for number in range(100)], edge=1.0)
    assert cpu_us_per_rejected(real.cost, flood.cost, {"edge": 0.001}) == pytest.approx({"edge": 200})


def test_a_machine_that_slows_down_is_held_against_before_and_after():
    real = offered([refused(number) for number in range(10)], edge=1.0)
    flood = offered([refused(number) for number in range(110)], edge=1.11)
    again = offered([refused(number) for number in range(10)], edge=1.2)
    assert drift_line(real, again).measured == pytest.approx(20)
    lines = by_figure(rejection_cost_lines(JUDGED_DRIVER, real, flood, FLOOR, repeated=again, cpu_s_per_admission={}))
    assert lines["session: CPU of a refusal, over all tiers"].measured == pytest.approx(100)


def test_the_calm_loads_have_as_many_tokens_and_are_below_what_is_served():
    world = scenario(SurgeOptions(seconds=20.0), MeshOptions(workers=2))
    tokens = [
        load * base_rate(each) * each.tenants[0].demand.output.tokens
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
