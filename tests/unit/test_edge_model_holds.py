"""Bounds of held requests, and the predicted wait that each of them is told."""

import pytest

from penstock.chassis.errors import Unavailable
from penstock.edge.models.holds import MIN_PREDICTED_WAIT_S, HoldLimits, ModelHolds

LIMITS = HoldLimits(seconds=120.0, requests=2, load_time=60.0)
NOW = 1_000.0


def refused(holds, *arguments):
    with pytest.raises(Unavailable) as raised:
        holds.admit(*arguments)
    assert raised.value.reason == "NO_WORKER"
    return raised.value.retry_after


def test_a_held_request_is_told_the_rest_of_the_load_time():
    holds = ModelHolds()
    assert holds.admit("m", LIMITS, 300.0, NOW) == 60
    assert holds.admit("m", LIMITS, 300.0, NOW + 45) == 15


def test_a_worker_that_loads_for_longer_than_expected_is_expected_soon():
    holds = ModelHolds()
    holds.admit("m", LIMITS, 300.0, NOW)
    assert holds.admit("m", LIMITS, 300.0, NOW + 70) == MIN_PREDICTED_WAIT_S


def test_the_third_request_of_two_is_told_when_to_come_back():
    holds = ModelHolds()
    for _ in range(2):
        holds.admit("m", LIMITS, 300.0, NOW)
    assert refused(holds, "m", LIMITS, 300.0, NOW + 20) == 40
    holds.release("m")
    assert holds.admit("m", LIMITS, 300.0, NOW + 20) == 40


@pytest.mark.parametrize(("seconds", "time_left"), [(120.0, 59.0), (59.0, 120.0)])
def test_a_request_that_cannot_wait_for_so_long_is_refused_at_once_and_still_starts_a_worker(seconds, time_left):
    holds = ModelHolds()
    assert refused(holds, "m", LIMITS._replace(seconds=seconds), time_left, NOW) == 60
    assert holds.wanted(NOW) == {"m": 1}
    assert holds.admit("m", LIMITS, time_left, NOW + 10) == 50, "the worker has loaded for 10 s since"
    holds.release("m")
    assert holds.wanted(NOW + 60 + 10.1) == {}


def test_a_model_is_wanted_by_its_held_requests_until_a_worker_serves_it():
    holds = ModelHolds()
    for _ in range(2):
        holds.admit("m", LIMITS, 300.0, NOW)
    assert holds.wanted(NOW + 61) == {"m": 2}
    holds.on_served("m")
    holds.release("m")
    assert holds.wanted(NOW + 61) == {"m": 1}
    holds.release("m")
    assert holds.wanted(NOW + 61) == {}
    assert holds.admit("m", LIMITS, 300.0, NOW + 61) == 60, "the next worker loads from its start on"
