"""The clock that excludes stalls of the process."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.clocks import StallFreeClock

GAPS_S = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=50)
STEP_S = 0.25


@given(GAPS_S)
def test_between_two_readings_at_most_the_maximum_gap_passes(gaps):
    own_time, now = StallFreeClock(STEP_S), 1_000.0
    before = began = own_time.at(now)
    for gap in gaps:
        now += gap
        after = own_time.at(now)
        assert math.isclose(after - before, min(gap, STEP_S), abs_tol=1e-6)
        before = after
    assert math.isclose(before - began, sum(min(gap, STEP_S) for gap in gaps), abs_tol=1e-6)


@given(st.lists(st.floats(0.0, STEP_S), min_size=1, max_size=50))
def test_without_stalls_the_clock_equals_its_source(gaps):
    times = itertools.accumulate((each / 2 for each in gaps), initial=1_000.0)
    own_time = StallFreeClock(STEP_S)
    assert all(own_time.at(now) == now for now in times)


@given(GAPS_S)
def test_an_infinite_step_is_the_clock_itself(gaps):
    own_time = StallFreeClock()
    assert all(own_time.at(now) == now for now in itertools.accumulate(gaps, initial=1_000.0))


def test_a_source_that_is_set_back_is_not_a_stall():
    own_time = StallFreeClock(STEP_S)
    own_time.at(1_000.0)
    assert own_time.at(900.0) == 900.0
    assert own_time.at(900.1) == 900.1
