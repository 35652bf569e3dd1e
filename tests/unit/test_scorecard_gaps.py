"""Gaps between tenants are set against plain VTC's as the card says."""

import math

import pytest

from penstock.cli.scorecard import gaps
from penstock.cli.scorecard.gaps import SHARDS, WORKLOADS, Workload
from penstock.cli.scorecard.parallel import all_cores
from penstock.edge.links.shards import home
from penstock.simulator.worker import MODEL

WIDEST = {
    "vtc": [2_000.0, 2_000.0, 16_000.0, 20_000.0],
    "fair": [4_000.0] * 4,
    "clairvoyant": [2_000.0] * 4,
    "vtc_in_a_mesh": [20_000.0] * 4,
    "fifo": [0.0],
}


class Known:
    """Stands for cores that have run all already."""

    def each_of(self, _, runs, __):
        return [WIDEST[run.policy][run.seed] for run in runs]


@pytest.fixture
def lines_of(monkeypatch):
    def lines(workload):
        monkeypatch.setattr(gaps, "WORKLOADS", {"two tenants": workload})
        return {line.figure: line for line in gaps.gap_lines(4, Known())}

    return lines


def test_a_share_of_plain_vtcs_gap_is_of_all_seeds_and_not_of_the_one_in_the_middle(lines_of):
    share = lines_of(Workload((), grain=1_000.0))["two tenants, 1 shard: gap, of plain VTC's"]
    assert (share.measured, share.goal, share.is_met) == (40, "<= 50", True)


def test_half_of_a_gap_that_no_order_can_halve_is_told_and_not_judged(lines_of):
    lines = lines_of(Workload((), grain=5_001.0))
    assert not lines["two tenants, 1 shard: gap, of plain VTC's"].goal
    assert lines["two tenants, 1 shard: gap of plain VTC, median"].measured == 9_000


def test_beside_it_stands_what_others_reach(lines_of, monkeypatch):
    monkeypatch.setattr(gaps, "COARSE", ("two tenants",))
    lines = lines_of(Workload((), grain=5_001.0))
    assert lines["two tenants, 1 shard: gap of an order that knows all, of plain VTC's"].measured == 20
    assert lines["two tenants, 1 shard: gap of VTC told by reports, of plain VTC's"].measured == 200


@pytest.mark.parametrize("shards", SHARDS)
def test_every_gap_is_held_against_the_theorems_bound(lines_of, shards):
    (bound,) = (
        line
        for name, line in lines_of(Workload((), grain=0.0)).items()
        if name.endswith(f"{shards} shard{'s' * (shards > 1)}: gap, worst")
    )
    assert bound.goal == f"<= {gaps.BOUND:g}"


@pytest.mark.parametrize("workload", [each for each in WORKLOADS.values() if len(each.tenants) == 2])
def test_of_four_shards_no_two_have_both_of_a_pair(workload):
    shards = dict.fromkeys(f"queue-{number}" for number in range(4))
    assert len({home(shards, MODEL, tenant.name) for tenant in workload.tenants}) == 2


def test_what_is_done_on_all_cores_comes_in_order_and_says_how_far_it_is():
    said = []
    with all_cores(said.append) as cores:
        assert cores.each_of(math.sqrt, [9.0, 4.0, 1.0], "roots") == [3.0, 2.0, 1.0]
    assert said == ["1 of 3 roots", "2 of 3 roots", "3 of 3 roots"]
