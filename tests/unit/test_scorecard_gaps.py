"""Gaps between tenants are set against plain VTC's as the card says."""

import math

import pytest

from penstock.edge.upstreams.hashing import shard_for
from penstock.proofs.simulated import gaps
from penstock.proofs.simulated.gaps import SHARD_COUNTS, WORKLOADS
from penstock.proofs.simulated.process_pool import process_pool
from penstock.simulator.mesh.worker import MODEL

WIDEST = {
    "vtc": [2_000.0, 2_000.0, 16_000.0, 20_000.0],
    "fair": [4_000.0] * 4,
    "clairvoyant": [3_000.0] * 4,
    "planner": [1_000.0, 1_000.0, 3_000.0, 3_000.0],
    "vtc_in_a_mesh": [20_000.0] * 4,
    "fifo": [0.0],
}


class Known:
    """Stands for cores that have run all already."""

    def each_of(self, _, runs, __):
        return [WIDEST[run.policy][run.seed] for run in runs]


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(gaps, "WORKLOADS", {"two tenants": ()})
    monkeypatch.setattr(gaps, "HARD", ("two tenants",))
    return {line.figure: line for line in gaps.gap_lines(4, Known())}


def test_a_share_of_plain_vtcs_gap_is_of_all_seeds_and_not_of_the_one_in_the_middle(lines):
    share = lines["two tenants, 1 shard: gap, of plain VTC's"]
    assert (share.measured, share.goal, share.is_met) == (40, "<= 50", True)


def test_beside_it_stands_what_others_reach(lines):
    assert lines["two tenants, 1 shard: gap of an order that knows all, of plain VTC's"].measured == 20
    assert lines["two tenants, 1 shard: gap of VTC told by reports, of plain VTC's"].measured == 200
    assert lines["two tenants, 1 shard: gap of plain VTC, median"].measured == 9_000


def judged(monkeypatch, *, hard=("two tenants",), **widest):
    for policy, gap in widest.items():
        monkeypatch.setitem(WIDEST, policy, [gap] * 4)
    monkeypatch.setattr(gaps, "WORKLOADS", {"two tenants": ()})
    monkeypatch.setattr(gaps, "HARD", hard)
    return {line.figure: line for line in gaps.gap_lines(4, Known())}["two tenants, 1 shard: gap, of plain VTC's"]


def test_a_gap_of_more_than_half_is_missed_where_an_order_that_knows_all_halves_it(monkeypatch):
    assert not judged(monkeypatch, fair=5_001.0, clairvoyant=4_000.0, planner=4_000.0).is_met


def test_where_no_order_halves_the_gap_the_best_one_sets_the_goal(monkeypatch):
    line = judged(monkeypatch, fair=7_200.0, clairvoyant=6_000.0, planner=6_500.0)
    assert (line.measured, line.goal, line.is_met) == (72, "<= 72", True)
    assert not judged(monkeypatch, fair=7_210.0, clairvoyant=6_000.0, planner=6_500.0).is_met


def test_elsewhere_half_of_plain_vtcs_is_the_goal_whatever_the_greedy_order_comes_to(monkeypatch):
    assert judged(monkeypatch, hard=(), fair=5_001.0, clairvoyant=9_000.0).goal == "<= 50"


def test_an_order_that_knows_all_is_no_worse_than_plain_vtc(monkeypatch):
    assert judged(monkeypatch, clairvoyant=20_000.0, planner=30_000.0).goal == "<= 120"


@pytest.mark.parametrize("shards", SHARD_COUNTS)
def test_every_gap_is_held_against_the_theorems_bound(lines, shards):
    (bound,) = (
        line for name, line in lines.items() if name.endswith(f"{shards} shard{'s' * (shards > 1)}: gap, worst")
    )
    assert bound.goal == f"<= {gaps.VTC_BOUND:g}"


@pytest.mark.parametrize("workload", [each for each in WORKLOADS.values() if len(each) == 2])
def test_of_four_shards_no_two_have_both_of_a_pair(workload):
    shards = dict.fromkeys(f"queue-{number}" for number in range(4))
    assert len({shard_for(shards, MODEL, tenant.name) for tenant in workload}) == 2


def test_what_is_done_on_all_cores_comes_in_order_and_says_how_far_it_is():
    said = []
    with process_pool(said.append) as cores:
        assert cores.map(math.sqrt, [9.0, 4.0, 1.0], "roots") == [3.0, 2.0, 1.0]
    assert said == ["1 of 3 roots", "2 of 3 roots", "3 of 3 roots"]
