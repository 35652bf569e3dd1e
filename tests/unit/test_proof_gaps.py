"""The card lines that compare service gaps with those of plain VTC."""

import math

import pytest

from penstock.edge.upstreams.hashing import shard_for
from penstock.proofs.simulated import gaps
from penstock.proofs.simulated.gaps import SHARD_COUNTS, WORKLOADS
from penstock.proofs.simulated.process_pool import process_pool
from penstock.simulator.mesh.worker import MODEL

WIDEST_GAPS = {
    "vtc": [2_000.0, 2_000.0, 16_000.0, 20_000.0],
    "fair": [4_000.0] * 4,
    "clairvoyant": [3_000.0] * 4,
    "fifo": [0.0],
}


class FakeProcessPool:
    """Returns known gaps in place of running scenarios."""

    def map(self, _, runs, __):
        return [WIDEST_GAPS[run.policy][run.seed] for run in runs]


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(gaps, "WORKLOADS", {"two tenants": ()})
    return {line.figure: line for line in gaps.gap_lines(4, FakeProcessPool())}


def test_a_gap_in_percent_of_plain_vtcs_is_that_of_the_means_over_seeds(lines):
    line = lines["two tenants, 1 shard: gap, in % of plain VTC's"]
    assert (line.measured, line.goal, line.is_met) == (40, "<= 50", True)


def test_the_card_reports_the_gaps_of_plain_vtc_and_of_the_clairvoyant_order(lines):
    assert lines["two tenants, 1 shard: gap of the clairvoyant order, in % of plain VTC's"].measured == 30
    assert lines["two tenants, 1 shard: gap of plain VTC, median"].measured == 9_000


def judged(monkeypatch, **widest):
    for policy, gap in widest.items():
        monkeypatch.setitem(WIDEST_GAPS, policy, [gap] * 4)
    monkeypatch.setattr(gaps, "WORKLOADS", {"two tenants": ()})
    lines = {line.figure: line for line in gaps.gap_lines(4, FakeProcessPool())}
    return [lines[f"two tenants, {shards}: gap, in % of plain VTC's"] for shards in ("1 shard", "4 shards")]


def test_a_gap_above_half_of_plain_vtcs_misses_where_the_clairvoyant_order_halves_it(monkeypatch):
    assert [line.is_met for line in judged(monkeypatch, fair=5_001.0, clairvoyant=4_000.0)] == [False, False]


def test_where_the_clairvoyant_order_does_not_halve_the_gap_it_sets_the_goal_of_every_shard_count(monkeypatch):
    for line in judged(monkeypatch, fair=7_200.0, clairvoyant=6_000.0):
        assert (line.measured, line.goal, line.is_met) == (72, "<= 72", True)
    assert [line.is_met for line in judged(monkeypatch, fair=7_210.0, clairvoyant=6_000.0)] == [False, False]


def test_no_goal_is_above_the_gap_of_plain_vtc(monkeypatch):
    assert {line.goal for line in judged(monkeypatch, clairvoyant=12_000.0)} == {"<= 100"}


@pytest.mark.parametrize("shards", SHARD_COUNTS)
def test_every_gap_is_compared_with_the_bound_of_vtcs_theorem(lines, shards):
    (bound,) = (
        line for name, line in lines.items() if name.endswith(f"{shards} shard{'s' * (shards > 1)}: gap, worst")
    )
    assert bound.goal == f"<= {gaps.VTC_BOUND:g}"


@pytest.mark.parametrize("workload", [each for each in WORKLOADS.values() if len(each) == 2])
def test_two_tenants_are_on_different_shards_of_four(workload):
    shards = dict.fromkeys(f"queue-{number}" for number in range(4))
    assert len({shard_for(shards, MODEL, tenant.name) for tenant in workload}) == 2


def test_parallel_results_come_in_order_with_a_progress_line_each():
    printed = []
    with process_pool(printed.append) as cores:
        assert cores.map(math.sqrt, [9.0, 4.0, 1.0], "roots") == [3.0, 2.0, 1.0]
    assert printed == ["1 of 3 roots", "2 of 3 roots", "3 of 3 roots"]
