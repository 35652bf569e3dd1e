"""Whole meshes with injected faults: no seed violates a guarantee, mutants do, and seeds replay exactly."""

import gc
import os
import random
import re
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock.cli
from faults_mutants import MUTANTS, PARTITION_MUTANTS, RESPONSE_MUTANTS
from penstock.cli.__main__ import cli
from penstock.faults.failpoints import PARTITION_FAILPOINTS
from penstock.faults.plan import PlanOverrides
from penstock.faults.response_plans import RESPONSE_FAILPOINTS
from penstock.faults.run import collect_finished_worlds, run_plan, run_seed
from penstock.faults.sweep import SweepSummary, replay, run_seeds
from penstock.faults.world import environment
from penstock.faults.world.world import World

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

SERVICES_FOLDER = Path(penstock.cli.__file__).parents[1]
RANDOM_CALL = re.compile(
    r"\brandom\.(random|uniform|choice|choices|sample|shuffle|randint|randrange|getrandbits|gauss)\("
)
SEED_COUNT = 2_000  # each time, a minute or two on two cores; `penstock faults --seeds 10000` runs more
ROLLOUT_SEEDS = 300  # likewise, with `--rollout`
LONG_SEEDS = 60  # likewise, with `--longest-freeze 40`; they take four times as long
REPLICA_SEEDS = 200  # likewise, with `--auth-replicas`
RESPONSE_SEEDS = 200  # likewise, with `--responses`
# Seeds within which each planted bug is found. Most take one or two; the rarest shows in 1 % of the seeds.
MUTANT_SEED_COUNT = 400


@pytest.mark.timeout(900)
def test_no_seed_violates_a_guarantee():
    tally = SweepSummary()
    for outcome in run_seeds(range(SEED_COUNT)):
        tally.add(outcome)
    found = {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds}
    assert found == {}
    assert tally.worlds == SEED_COUNT
    assert tally.worlds_with_faults > 0.7 * SEED_COUNT  # the faults were real
    assert tally.requests > 5 * SEED_COUNT
    assert tally.failpoints_hit > 73  # of 77; a few are rare
    assert len(tally.faults_by_kind) == 7


def test_no_seed_violates_a_guarantee_with_freezes_beyond_the_patience_of_peers():
    tally = SweepSummary()
    for outcome in run_seeds(range(LONG_SEEDS), PlanOverrides(max_freeze_s=40.0)):
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert tally.faults_by_kind["freeze"] > 0.8 * LONG_SEEDS


@pytest.mark.timeout(900)
def test_no_answer_mixes_two_versions_of_a_model_during_a_rollout():
    tally = SweepSummary()
    for outcome in run_seeds(range(ROLLOUT_SEEDS), PlanOverrides(has_rollout=True)):
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert tally.faults_by_kind["term"] > 0.8 * ROLLOUT_SEEDS  # workers were replaced


def test_no_seed_violates_a_guarantee_with_several_replicas_of_auth():
    tally = SweepSummary()
    for outcome in run_seeds(range(REPLICA_SEEDS), PlanOverrides(has_auth_replicas=True)):
        assert outcome.plan.shape.auths in (2, 3)
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert set(PARTITION_FAILPOINTS) <= tally.frames_by_failpoint.keys()


def test_no_seed_violates_a_guarantee_with_stored_responses():
    tally = SweepSummary()
    for outcome in run_seeds(range(RESPONSE_SEEDS), PlanOverrides(has_responses=True)):
        assert outcome.plan.responses
        tally.add(outcome)
    assert {outcome.plan.seed: outcome.violations for outcome in tally.failed_worlds} == {}
    assert set(RESPONSE_FAILPOINTS) <= tally.frames_by_failpoint.keys()


def test_a_seed_replays_exactly_alone_and_in_a_sweep():
    one, story = replay(1)
    other, again = replay(1)
    among = next(each for each in run_seeds(range(4), processes=1) if each.plan.seed == 1)
    assert story == again
    assert len(story) > 100
    assert one.frame_digest == other.frame_digest == among.frame_digest
    assert (one.callbacks, one.virtual_s, one.injected) == (among.callbacks, among.virtual_s, among.injected)


def test_a_seed_replays_exactly_beside_threads_that_use_random():
    alone, is_over = run_seed(2), threading.Event()

    def draw():
        while not is_over.wait(0.001):
            random.random()
            os.urandom(8)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert run_seed(2).frame_digest == alone.frame_digest
    finally:
        is_over.set()
        thread.join()


def test_a_seed_replays_exactly_for_any_state_of_the_random_module():
    """Clients wait for a spread time before they try again."""
    planned = MUTANTS["the_client_omits_the_seed_when_it_resumes"].plan(1)
    traces = set()
    for number in range(4):
        random.seed(number)
        traces.add(run_plan(planned).frame_digest)
    assert len(traces) == 1


def test_all_modules_that_use_random_are_patched():
    found = {
        "penstock." + ".".join(path.relative_to(SERVICES_FOLDER).with_suffix("").parts)
        for package in ("auth", "chassis", "client", "edge", "queue", "scheduler", "worker")
        for path in (SERVICES_FOLDER / package).rglob("*.py")
        if RANDOM_CALL.search(path.read_text())
    }
    assert found == set(environment.MODULES_WITH_RANDOM)


def test_finished_worlds_are_freed():
    before = worlds_in_memory()  # of other tests in this process, which may have kept theirs
    for seed in range(3):
        run_seed(seed)
    for _ in range(2):  # coroutines that are closed by the first are freed by the second
        collect_finished_worlds()
    assert worlds_in_memory() <= before


def worlds_in_memory():
    return {id(each) for each in gc.get_objects() if type(each) is World}


def test_frame_digests_differ_between_seeds():
    assert len({run_seed(seed).frame_digest for seed in range(6)}) == 6


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_and_replays_exactly(name):
    mutant = MUTANTS[name]
    with mutant.applied():
        seed = next((seed for seed in range(MUTANT_SEED_COUNT) if run_plan(mutant.plan(seed)).violations), None)
        assert seed is not None, f"{name} was not found"
        again = [run_plan(mutant.plan(seed)) for _ in range(2)]
    assert again[0].violations == again[1].violations != ()
    assert run_plan(mutant.plan(seed)).violations == ()


@pytest.mark.parametrize("name", [each.__name__ for each in (*PARTITION_MUTANTS, *RESPONSE_MUTANTS)])
def test_worlds_without_the_mutation_pass_all_seeds_up_to_the_one_that_finds_it(name):
    mutant = MUTANTS[name]
    for seed in range(MUTANT_SEED_COUNT):
        assert run_plan(mutant.plan(seed)).violations == ()
        with mutant.applied():
            if run_plan(mutant.plan(seed)).violations:
                return
    pytest.fail(f"{name} was not found")


def test_a_frame_log_ends_with_the_faults_and_the_replay_command():
    ran = CliRunner().invoke(cli, ["faults", "--seed", "3", "--frame-log"])
    assert ran.exit_code == 0, ran.output
    assert "AdmissionService/Admit -> reserve auth0" in ran.stdout
    assert "penstock faults --seed 3 --frame-log" in ran.stdout
