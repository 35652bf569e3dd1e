"""Retry delays and the retry budget."""

import pytest

from penstock.client import (
    Aborted,
    Internal,
    InvalidArgument,
    Overloaded,
    QuotaExceeded,
    RetryPolicy,
    Unauthenticated,
    Unavailable,
)
from penstock.client.retries import CONNECTION_LOST, RetryBudget

CONNECTION_CUT = Unavailable("cut", reason=CONNECTION_LOST)


def test_a_lost_connection_is_retried_with_growing_jitter():
    policy = RetryPolicy(backoff=(0.1, 0.3))
    assert [policy.delay(CONNECTION_CUT, attempt, 0.5) for attempt in (1, 2, 3, 4, 5)] == [0.05, 0.1, 0.15, 0.15, None]
    assert policy.delay(CONNECTION_CUT, 1, 0.0) == 0.0


@pytest.mark.parametrize(
    "error",
    [
        Overloaded("full", reason="QUEUE_FULL", retry_after=2.0),
        Unavailable("draining", reason="DRAINING", retry_after=2.0),
        QuotaExceeded("limit", retry_after=2.0),
    ],
)
def test_a_retry_waits_for_retry_after(error):
    policy = RetryPolicy(backoff=(0.1, 0.3))
    assert policy.delay(error, 1, 0.0) == 2.0
    assert policy.delay(error, 1, 0.5) == pytest.approx(2.05)


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("no time is named", reason="NO_WORKER"),
        Overloaded("no time is named"),
        QuotaExceeded("in a minute", retry_after=60.0),
        InvalidArgument("wrong", retry_after=1.0),
        Unauthenticated("no key"),
        Aborted("workers kept failing", retry_after=1.0),
        Internal("internal error"),
    ],
)
def test_an_error_without_a_timely_retry_is_raised_at_once(error):
    assert RetryPolicy().delay(error, 1, 0.0) is None


def test_rejections_use_the_budget_and_successes_restore_it():
    budget, error = RetryBudget(RetryPolicy()), Overloaded("full", retry_after=0.5)
    assert [budget.delay(error, 1, 0.0) for _ in range(6)] == [0.5, 0.5, 0.5, 0.5, None, None]
    for _ in range(20):
        budget.on_success()
    assert budget.level == pytest.approx(6.0)
    budget.on_success()
    assert budget.delay(error, 1, 0.0) == 0.5


def test_the_budget_is_never_more_than_its_capacity():
    budget = RetryBudget(RetryPolicy())
    budget.on_success()
    assert budget.level == 10.0


def test_lost_connections_do_not_use_the_budget():
    budget = RetryBudget(RetryPolicy())
    assert all(budget.delay(CONNECTION_CUT, 1, 0.5) is not None for _ in range(100))


def test_errors_that_are_not_retried_cost_nothing():
    budget = RetryBudget(RetryPolicy())
    budget.delay(Unauthenticated("no key"), 1, 0.0)
    assert budget.level == 10.0
