"""`penstock faults`: its output for people and programs, and its exit status."""

import io
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from penstock.cli import faults as command
from penstock.cli.__main__ import cli
from penstock.faults.checks.checker import Violation
from penstock.faults.failpoints import FAILPOINTS
from penstock.faults.mutations import plan_world
from penstock.faults.plan import FaultKind, PlanOverrides
from penstock.faults.result import WorldResult

FAILING_SEED = 3


def outcome(seed, *, violations=()):
    return WorldResult(
        plan=plan_world(seed),
        violations=violations,
        injected=("0.5 kill edge0 for 1.000 s", "0.6 reset a and b for 0.000 s") if seed % 2 else (),
        frames_by_failpoint=dict.fromkeys(FAILPOINTS[:2], 1),
        frame_digest=1,
        callbacks=10,
        virtual_s=2.0,
        requests=4,
    )


@pytest.fixture
def fake_worlds(monkeypatch):
    """Replaces worlds by fixed outcomes; returns the arguments of the call and the set of failing seeds."""
    calls = {"failing": ()}

    def run_seeds(seeds, overrides, *, processes):
        calls.update(seeds=seeds, processes=processes, overrides=overrides)
        broken = (Violation("changed", "ids [1], expected [2]"),)
        yield from (outcome(seed, violations=broken if seed in calls["failing"] else ()) for seed in seeds)

    monkeypatch.setattr(command, "run_seeds", run_seeds)
    return calls


def run(*options):
    return CliRunner().invoke(cli, ["faults", *options])


def test_every_world_can_have_a_poison_request(fake_worlds):
    assert run("--poison", "--seeds", "1").exit_code == 0
    assert fake_worlds["overrides"] == PlanOverrides(has_poison=True)
    poisoned = PlanOverrides(has_poison=True)
    assert (
        sum(each.crash_token_index is not None for seed in range(5) for each in plan_world(seed, poisoned).requests)
        == 5
    )


def test_every_world_can_have_a_long_freeze(fake_worlds):
    assert run("--longest-freeze", "40", "--seeds", "1").exit_code == 0
    assert fake_worlds["overrides"] == PlanOverrides(max_freeze_s=40.0)
    for seed in range(50):
        frozen = [
            fault for fault in plan_world(seed, fake_worlds["overrides"]).faults if fault.kind is FaultKind.FREEZE
        ]
        assert frozen
        assert all(5.0 <= fault.duration_s <= 40.0 for fault in frozen)


def test_the_replay_command_has_the_overrides(fake_worlds, monkeypatch):
    overrides = PlanOverrides(has_poison=True, has_batches=True, max_freeze_s=12.5)
    replayed = replace(outcome(FAILING_SEED), plan=plan_world(FAILING_SEED, overrides)), []
    monkeypatch.setattr(command, "replay", lambda seed, overrides: replayed)
    ran = run("--seed", str(FAILING_SEED), "--frame-log", "--poison", "--batches", "--longest-freeze", "12.5")
    assert f"penstock faults --seed {FAILING_SEED} --poison --batches --longest-freeze 12.5 --frame-log" in ran.stdout


def test_a_violation_in_a_world_of_regions_names_the_command_that_repeats_it(fake_worlds, monkeypatch):
    overrides = PlanOverrides(has_regions=True)
    replayed = replace(outcome(FAILING_SEED), plan=plan_world(FAILING_SEED, overrides)), []
    monkeypatch.setattr(command, "replay", lambda seed, overrides: replayed)
    ran = run("--seed", str(FAILING_SEED), "--frame-log", "--regions")
    assert f"penstock faults --seed {FAILING_SEED} --regions --frame-log" in ran.stdout


def test_worlds_of_regions_have_no_other_option(fake_worlds):
    ran = run("--regions", "--poison")
    assert ran.exit_code == 2
    assert "--regions excludes" in ran.output


def test_json_has_the_sums_over_all_worlds(fake_worlds):
    ran = run("--seeds", "5", "--seed", "100", "--processes", "2", "--json")
    assert ran.exit_code == 0, ran.output
    assert (fake_worlds["seeds"], fake_worlds["processes"], fake_worlds["overrides"]) == (
        range(100, 105),
        2,
        PlanOverrides(),
    )
    found = json.loads(ran.stdout)
    took, speed = found.pop("seconds"), found.pop("worlds_per_s")
    assert min(took, speed) >= 0.0
    assert found == {
        "worlds": 5,
        "worlds_with_faults": 2,
        "requests": 20,
        "faults": {"kill": 2, "reset": 2},
        "virtual_seconds": 10.0,
        "failpoints": len(FAILPOINTS),
        "failpoints_hit": 2,
        "failpoints_missed": [str(each) for each in FAILPOINTS[2:]],
        "failed": {},
    }


def test_a_violation_exits_with_1_and_is_listed_by_seed(fake_worlds):
    fake_worlds["failing"] = (FAILING_SEED,)
    ran = run("--seeds", "5", "--json")
    assert ran.exit_code == 1
    assert json.loads(ran.stdout)["failed"] == {str(FAILING_SEED): ["changed: ids [1], expected [2]"]}


def test_the_summary_has_sums_violations_and_replay_commands(fake_worlds):
    fake_worlds["failing"] = (FAILING_SEED,)
    ran = run("--seeds", "5")
    assert ran.exit_code == 1
    assert f"seed {FAILING_SEED}" in ran.stdout
    assert "changed: ids [1], expected [2]" in ran.stdout
    assert f"penstock faults --seed {FAILING_SEED} --frame-log" in ran.stdout
    assert "5, 2 with faults; 1 with violations" in ran.stdout
    assert f"2 of {len(FAILPOINTS)} were reached; never: {FAILPOINTS[2]}" in ran.stdout


def test_worlds_without_a_violation_exit_with_0(fake_worlds):
    ran = run("--seeds", "5")
    assert ran.exit_code == 0
    assert "0 with violations" in ran.stdout
    assert "--frame-log" not in ran.stdout


def test_progress_counts_worlds_and_failed_ones_on_stderr(fake_worlds, monkeypatch):
    """Progress goes to stderr, so that a program can read stdout while a person watches."""
    screen = io.StringIO()
    monkeypatch.setattr(command, "stderr_console", Console(file=screen, force_terminal=True, width=120))
    fake_worlds["failing"] = (FAILING_SEED,)
    ran = run("--seeds", "5", "--json")
    assert "worlds, 1 with violations" in screen.getvalue()
    assert "5/5" in screen.getvalue()
    assert json.loads(ran.stdout)["worlds"] == 5


def test_a_frame_log_with_a_violation_exits_with_1(monkeypatch):
    replayed = (
        outcome(FAILING_SEED, violations=(Violation("leak", "edge0 has flights 1.0"),)),
        ["0.1 first", "0.2 second"],
    )
    monkeypatch.setattr(command, "replay", lambda seed, overrides: replayed)
    ran = run("--seed", str(FAILING_SEED), "--frame-log")
    assert ran.exit_code == 1
    assert ran.stdout.startswith("0.1 first\n0.2 second\n")
    assert "leak: edge0 has flights 1.0" in ran.stdout


@pytest.mark.parametrize(
    "options",
    [("--seeds", "0"), ("--seed", "-1"), ("--processes", "257"), ("--seeds", "many"), ("--longest-freeze", "5")],
)
def test_options_out_of_range_are_rejected_before_a_run(fake_worlds, options):
    assert run(*options).exit_code == 2
    assert "seeds" not in fake_worlds
