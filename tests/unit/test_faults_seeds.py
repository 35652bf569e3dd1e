"""Whole meshes with injected faults: no seed violates a guarantee."""

import pytest

from penstock.faults.batch_plans import BATCH_FAILPOINTS
from penstock.faults.failpoints import PARTITION_FAILPOINTS
from penstock.faults.plan import PlanOverrides
from penstock.faults.regions.home_plans import FOLLOW_FAILPOINTS
from penstock.faults.regions.plans import COMMON_BORDER_FAILPOINTS
from penstock.faults.response_plans import RESPONSE_FAILPOINTS
from penstock.faults.sweep import SweepSummary, run_seeds
from seed_slices import seeds_of_this_commit

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

# A commit tests a fourth of each range; `penstock faults --seeds 10000` runs more.
SEEDS = seeds_of_this_commit(2_000)
ROLLOUT_SEEDS = seeds_of_this_commit(300)  # likewise, with `--rollout`
LONG_SEEDS = seeds_of_this_commit(80)  # likewise, with `--longest-freeze 40`; they take four times as long
REPLICA_SEEDS = seeds_of_this_commit(400)  # likewise, with `--auth-replicas`
RESPONSE_SEEDS = seeds_of_this_commit(400)  # likewise, with `--responses`
BATCH_SEEDS = seeds_of_this_commit(48)  # likewise, with `--batches`
REGION_SEEDS = seeds_of_this_commit(160)  # likewise, with `--regions`


def test_no_seed_violates_a_guarantee():
    tally = SweepSummary()
    for outcome in run_seeds(SEEDS):
        tally.add(outcome)
    found = {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds}
    assert found == {}
    assert tally.worlds == len(SEEDS)
    assert tally.worlds_with_faults > 0.7 * len(SEEDS)  # the faults were real
    assert tally.requests > 5 * len(SEEDS)
    assert tally.failpoints_hit > 73  # of 77; a few are rare
    assert len(tally.faults_by_kind) == 7


def test_no_seed_violates_a_guarantee_with_freezes_beyond_the_patience_of_peers():
    tally = SweepSummary()
    for outcome in run_seeds(LONG_SEEDS, PlanOverrides(max_freeze_s=40.0)):
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert tally.faults_by_kind["freeze"] > 0.7 * len(LONG_SEEDS)  # of the others, no frame armed the fault


def test_no_answer_mixes_two_versions_of_a_model_during_a_rollout():
    tally = SweepSummary()
    for outcome in run_seeds(ROLLOUT_SEEDS, PlanOverrides(has_rollout=True)):
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert tally.faults_by_kind["term"] > 0.8 * len(ROLLOUT_SEEDS)  # workers were replaced


def test_no_seed_violates_a_guarantee_with_several_replicas_of_auth():
    tally = SweepSummary()
    for outcome in run_seeds(REPLICA_SEEDS, PlanOverrides(has_auth_replicas=True)):
        assert outcome.plan.shape.auths in (2, 3)
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert set(PARTITION_FAILPOINTS) <= tally.frames_by_failpoint.keys()


def test_no_seed_violates_a_guarantee_with_stored_responses():
    tally = SweepSummary()
    for outcome in run_seeds(RESPONSE_SEEDS, PlanOverrides(has_responses=True)):
        assert outcome.plan.responses
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert set(RESPONSE_FAILPOINTS) <= tally.frames_by_failpoint.keys()


def test_no_seed_violates_a_guarantee_with_batches():
    tally = SweepSummary()
    for outcome in run_seeds(BATCH_SEEDS, PlanOverrides(has_batches=True)):
        assert outcome.plan.batches
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert set(BATCH_FAILPOINTS) <= tally.frames_by_failpoint.keys()


def test_no_seed_violates_a_guarantee_with_several_regions():
    tally = SweepSummary()
    for outcome in run_seeds(REGION_SEEDS, PlanOverrides(has_regions=True)):
        assert len(outcome.plan.shape.regions) in (2, 3)
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert {*COMMON_BORDER_FAILPOINTS, *FOLLOW_FAILPOINTS} <= tally.frames_by_failpoint.keys()
    assert {"region_kill", "cut", "slow_link"} <= tally.faults_by_kind.keys()
