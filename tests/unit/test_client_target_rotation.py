"""The order of a client's targets: rotation, cooldown, and failover targets while every home target is down."""

import pytest

from penstock.client.target_rotation import FAILURE_COOLDOWN_S, REFUSAL_COOLDOWN_S, TargetRotation

SOON = FAILURE_COOLDOWN_S / 2


def fail(rotation, target, now, began_at=0.0):
    rotation.mark_failed(target, began_at, now)


def test_targets_rotate():
    rotation = TargetRotation(["a", "b", "c"])
    assert [rotation.next(0.0) for _ in range(4)] == ["a", "b", "c", "a"]


def test_a_failed_target_is_skipped_during_its_cooldown():
    rotation = TargetRotation(["a", "b"])
    fail(rotation, "a", 10.0)
    assert [rotation.next(10.0 + SOON) for _ in range(3)] == ["b", "b", "b"]
    assert {rotation.next(10.0 + FAILURE_COOLDOWN_S) for _ in range(2)} == {"a", "b"}


def test_when_all_have_failed_the_oldest_failure_is_tried():
    rotation = TargetRotation(["a", "b", "c"])
    for now, target in enumerate("bca"):
        fail(rotation, target, 10.0 + now / 10)
    assert rotation.next(10.3) == "b"


def test_without_failover_targets_no_target_is_down():
    rotation = TargetRotation(["a", "b"])
    rotation.mark_unreachable("a", 10.0)
    assert not rotation.down
    assert {rotation.next(10.0 + FAILURE_COOLDOWN_S) for _ in range(2)} == {"a", "b"}


def test_failover_targets_are_used_only_while_every_home_target_is_down():
    rotation = TargetRotation(["a", "b"], ["x", "y"])
    assert [rotation.next(0.0) for _ in range(3)] == ["a", "b", "a"]
    rotation.mark_unreachable("a", 10.0)
    assert [rotation.next(10.0) for _ in range(2)] == ["b", "b"]
    rotation.mark_unreachable("b", 10.0)
    assert [rotation.next(10.0) for _ in range(3)] == ["x", "y", "x"]
    assert not rotation.is_home_usable(10.0)


def test_a_home_target_that_is_down_is_used_again_when_it_is_up_and_not_when_its_cooldown_ends():
    rotation = TargetRotation(["a"], ["x"])
    rotation.mark_unreachable("a", 10.0)
    assert rotation.next(10.0 + 100 * FAILURE_COOLDOWN_S) == "x"
    rotation.mark_up("a")
    assert rotation.next(10.0 + 100 * FAILURE_COOLDOWN_S) == "a"
    assert not rotation.down


def test_calls_that_fail_together_do_not_take_a_home_target_down():
    rotation = TargetRotation(["a"], ["x"])
    for now in (10.0, 10.01, 10.02):  # one process behind the target has died with all of them
        fail(rotation, "a", now, began_at=9.0)
    assert not rotation.down
    assert rotation.next(10.03) == "a"


@pytest.mark.parametrize(("began_at", "chosen"), [(10.0 + SOON, "x"), (10.0 + 2 * FAILURE_COOLDOWN_S, "a")])
def test_a_call_that_began_soon_after_a_failure_and_fails_as_well_takes_a_home_target_down(began_at, chosen):
    rotation = TargetRotation(["a"], ["x"])
    fail(rotation, "a", 10.0)
    fail(rotation, "a", began_at + 0.1, began_at)
    assert rotation.next(began_at + 0.1) == chosen


def test_of_home_targets_that_have_failed_once_the_oldest_failure_is_tried_before_failover():
    rotation = TargetRotation(["a", "b"], ["x"])
    fail(rotation, "b", 10.0)
    fail(rotation, "a", 10.1)
    assert rotation.next(10.2) == "b"


def test_when_failover_targets_have_failed_too_the_oldest_failure_of_all_is_tried():
    rotation = TargetRotation(["a"], ["x", "y"])
    rotation.mark_unreachable("x", 10.0)
    rotation.mark_unreachable("a", 10.1)
    assert rotation.next(10.2) == "y"
    rotation.mark_unreachable("y", 10.2)
    assert rotation.next(10.3) == "x"


def test_another_target_counts_as_healthy_only_if_it_is_neither_the_last_one_nor_failed():
    rotation = TargetRotation(["a"], ["x"])
    assert rotation.next(10.0) == "a"
    assert rotation.has_healthy(10.0)
    rotation.mark_unreachable("x", 10.0)
    assert not rotation.has_healthy(10.0 + SOON)


def test_a_target_that_refuses_the_caller_is_used_again_after_its_cooldown_or_if_all_refuse():
    rotation = TargetRotation(["eu", "us"])
    assert rotation.mark_refused("eu", 10.0)
    fail(rotation, "us", 11.0)
    assert [rotation.next(11.0) for _ in range(3)] == ["us", "us", "us"]
    assert not rotation.has_healthy(11.0)
    assert {rotation.next(10.0 + REFUSAL_COOLDOWN_S) for _ in range(2)} == {"eu", "us"}
    assert rotation.mark_refused("eu", 80.0)
    assert not rotation.mark_refused("us", 80.0)
    assert {rotation.next(90.0) for _ in range(2)} == {"eu", "us"}


def test_a_failover_target_is_used_while_every_home_target_is_down_or_refuses_the_caller():
    rotation = TargetRotation(["a", "b"], ["x"])
    rotation.mark_unreachable("a", 10.0)
    assert rotation.is_home_usable(10.0)
    assert rotation.mark_refused("b", 10.0)
    assert not rotation.is_home_usable(10.0)
    assert [rotation.next(10.0) for _ in range(2)] == ["x", "x"]
    assert rotation.is_home_usable(10.0 + REFUSAL_COOLDOWN_S)
    assert rotation.next(10.0 + REFUSAL_COOLDOWN_S) == "b"


def test_a_failover_target_that_refuses_the_caller_is_not_used_while_home_is_down():
    rotation = TargetRotation(["a"], ["x"])
    rotation.mark_unreachable("a", 10.0)
    assert rotation.mark_refused("x", 10.0)
    assert [rotation.next(20.0) for _ in range(2)] == ["a", "a"]
