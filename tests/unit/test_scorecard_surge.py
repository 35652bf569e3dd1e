"""What the surge makes of histories: who was refused at the door, who later, what one more refusal costs."""

from dataclasses import replace

import pytest

from penstock.bench.history import OK, History
from penstock.bench.report import Slo, report
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.live.refusal_floor import Floor
from penstock.proofs.live.surge import CALM, LONG, SHORTER, SurgeOptions, calm, rate, scenario
from penstock.proofs.live.surge_cost import of_one_let_in, of_one_refused
from penstock.proofs.live.surge_lines import (
    JUDGED,
    Offered,
    alone_lines,
    cost_lines,
    drift_line,
    goodput_lines,
    let_in_lines,
    refusal_lines,
    void_because,
)

SECONDS = 10.0
FLOOR = Floor(cpu=0.0002, waits=[0.001, 0.002])


def answered(number, started=1.0):
    history = History(number=number, started=started)
    history.take(started + 0.5, 0, 4)
    history.end(started + 1.0, OK)
    return history


def refused(number, after=0.004, *, was_let_in=False):
    history = History(number=number, started=2.0, prompt_tokens=8 if was_let_in else 0)
    history.end(2.0 + after, "OVERLOADED", "RESOURCE_EXHAUSTED", retry_after=1.0)
    return history


def offered(histories, tokens=0, **cpu):
    return Offered(figures=report(histories, SECONDS, {}, Slo()), histories=histories, tokens=tokens, cpu=cpu)


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
    lines = by_figure([*refusal_lines(real, flood), *cost_lines(JUDGED, real, flood, FLOOR, let_in={})])
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
        way: [line for line in cost_lines(way, real, flood, FLOOR, let_in={}) if not line.is_met]
        for way in (JUDGED, "call")
    }
    assert (len(missed[JUDGED]), len(missed["call"])) == (2, 0)
    lines = by_figure(cost_lines("call", real, flood, FLOOR, let_in={}))
    assert [lines[f"call: {floor}"].measured for floor in ("CPU of an empty one", "P99 until an empty one is")] == [
        200,
        0.002,
    ]


def test_what_edges_refuse_alone_is_told_as_a_share():
    real = replace(offered([refused(number) for number in range(10)], edge=1.0), by_edges=4.0)
    flood = replace(offered([refused(number) for number in range(110)], edge=1.0), by_edges=99.0)
    simulated = {"refused_by_edges_share": 0.85}
    lines = by_figure([*alone_lines(3.0, real, simulated), *alone_lines(8.0, flood, simulated)])
    shares = [lines[f"refused by the edge alone at {load}"].measured for load in ("3x", "8x", "8x as simulated")]
    assert shares == [40.0, 90.0, 85.0]


def test_clients_that_cannot_keep_up_prove_nothing_and_tell_their_lag_alone():
    real = offered([refused(number) for number in range(10)], edge=1.0)
    late = replace(offered([refused(number) for number in range(12)], edge=9.0), lag=40.0)
    assert not void_because(real, real)
    assert "40.0 s too late" in void_because(real, late)
    [line] = cost_lines("HTTP", real, late, FLOOR, let_in={})
    assert (line.measured, line.goal) == (40.0, "")


def test_what_was_let_in_beside_more_refusals_is_taken_out_by_what_one_costs_where_nobody_is_refused():
    few = offered([answered(number) for number in range(10)], edge=1.0, auth=0.1)
    many = offered([answered(number) for number in range(60)], edge=1.1, auth=0.2)
    assert of_one_let_in(few.spent, many.spent) == pytest.approx({"edge": 0.002, "auth": 0.002})
    real = offered([answered(number) for number in range(10)], edge=1.0, auth=0.1)
    flood = offered([answered(0) for _ in range(15)] + [refused(number) for number in range(100)], edge=1.02, auth=0.11)
    let_in = of_one_let_in(few.spent, many.spent)
    lines = by_figure(cost_lines(JUDGED, real, flood, FLOOR, let_in=let_in))
    costs = [lines[f"session: CPU of a refusal, {tier}"].measured for tier in ("edge", "auth")]
    assert costs == pytest.approx([100, 0])
    assert lines["session: CPU of a refusal with what was let in beside"].measured == pytest.approx(300)
    counts = by_figure(let_in_lines(few, many, {3.0: real, 8.0: flood}))
    assert [counts[f"let in at {load}"].measured for load in ("3x", "8x")] == [10, 15]


def test_fewer_that_are_let_in_make_refusals_dearer():
    real = offered([answered(number) for number in range(20)], edge=1.0)
    flood = offered([refused(number) for number in range(100)], edge=1.0)
    assert of_one_refused(real.spent, flood.spent, {"edge": 0.001}) == pytest.approx({"edge": 200})


def test_a_machine_that_slows_down_is_held_against_before_and_after():
    real = offered([refused(number) for number in range(10)], edge=1.0)
    flood = offered([refused(number) for number in range(110)], edge=1.11)
    again = offered([refused(number) for number in range(10)], edge=1.2)
    assert drift_line(real, again).measured == pytest.approx(20)
    lines = by_figure(cost_lines(JUDGED, real, flood, FLOOR, again=again, let_in={}))
    assert lines["session: CPU of a refusal, over all tiers"].measured == pytest.approx(100)


def test_the_calm_loads_have_as_many_tokens_and_are_below_what_is_served():
    world = scenario(SurgeOptions(seconds=20.0), MeshOptions(workers=2))
    tokens = [
        load * rate(each) * each.tenants[0].demand.output.tokens
        for each, load in ((calm(world, LONG), CALM), (calm(world, LONG // SHORTER), CALM * SHORTER))
    ]
    assert tokens[0] == tokens[1]
    assert CALM < 1
