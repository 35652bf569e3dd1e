"""The time limit that an HTTP caller states in headers."""

import pytest

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits
from penstock.edge.request.deadline_headers import time_limit


def limit_of(*, is_streamed=False, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return time_limit(lambda name: named.get(name, ""), is_streamed=is_streamed)


def test_a_caller_without_headers_states_none():
    assert limit_of() is None


def test_the_earlier_limit_counts():
    assert limit_of(x_request_timeout_ms="1500") == 1.5
    assert limit_of(x_stainless_read_timeout="30", x_request_timeout_ms="45000") == 30.0
    assert limit_of(x_stainless_read_timeout="600.0", x_request_timeout_ms="45000") == 45.0
    assert limit_of(x_stainless_timeout="12") == 12.0


def test_the_time_between_two_reads_does_not_limit_a_stream():
    assert limit_of(x_stainless_read_timeout="5", is_streamed=True) is None
    assert limit_of(x_stainless_read_timeout="5", x_request_timeout_ms="60000", is_streamed=True) == 60.0


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan", "inf", "1e9", str(limits.TIMEOUT_S * 1e3 + 1)])
def test_a_limit_out_of_range_is_rejected_by_name(wrong):
    with pytest.raises(InvalidArgument, match=r"x-request-timeout-ms is .* up to 86400000") as failure:
        limit_of(x_request_timeout_ms=wrong)
    assert failure.value.field_violations[0].field == "x-request-timeout-ms"


@pytest.mark.parametrize("wrong", ["0", "-1", "None", "nan", "inf"])
def test_a_timeout_of_a_client_that_is_no_time_is_ignored(wrong):
    assert limit_of(x_stainless_read_timeout=wrong) is None
