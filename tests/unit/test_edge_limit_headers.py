"""Limits of a caller as headers: OpenAI's names and durations."""

import pytest

from penstock.edge.request.limit_headers import duration_text, limit_headers
from penstock.mesh.v1.admission_pb2 import Admitted, RateLimits, Rejected


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "0ms"),
        (120, "120ms"),
        (1_000, "1s"),
        (7_660, "7.66s"),
        (60_000, "1m0s"),
        (360_000, "6m0s"),
        (90_500, "1m30.5s"),
    ],
)
def test_durations_are_written_as_openai_does(millis, text):
    assert duration_text(millis) == text


def test_an_answer_without_limits_has_no_headers():
    assert limit_headers(Admitted()) == limit_headers(Rejected()) == ()


def test_only_the_limits_that_exist_are_headers():
    limits = RateLimits(limit_tokens=600, remaining_tokens=0, reset_tokens_millis=120)
    expected = (
        ("x-ratelimit-limit-tokens", "600"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "120ms"),
    )
    assert limit_headers(Rejected(rate_limits=limits)) == expected
    warned = Admitted(rate_limits=limits, budget_warning="tenant:acme has used 80.0% of its budget day_tokens")
    assert limit_headers(warned) == (*expected, ("x-penstock-budget-warning", warned.budget_warning))
