"""Fault worlds replay exactly: a seed gives the same frames each time, whatever else its process does."""

import gc
import os
import random
import re
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock.cli
from faults_mutants import MUTANTS
from penstock.cli.__main__ import cli
from penstock.faults.leftovers import collect_finished_worlds
from penstock.faults.run import run_plan, run_seed
from penstock.faults.sweep import replay, run_seeds
from penstock.faults.world import environment
from penstock.faults.world.world import World

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

SERVICES_FOLDER = Path(penstock.cli.__file__).parents[1]
RANDOM_CALL = re.compile(
    r"\brandom\.(random|uniform|choice|choices|sample|shuffle|randint|randrange|getrandbits|gauss)\("
)


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


def test_a_frame_log_ends_with_the_faults_and_the_replay_command():
    ran = CliRunner().invoke(cli, ["faults", "--seed", "3", "--frame-log"])
    assert ran.exit_code == 0, ran.output
    assert "AdmissionService/Admit -> reserve auth0" in ran.stdout
    assert "penstock faults --seed 3 --frame-log" in ran.stdout
