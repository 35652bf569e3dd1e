"""Auth fallback: detection of an outage of auth."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.chassis.clocks import StallFreeClock
from penstock.edge.auth_fallback.outage import RESPONSE_TIMEOUT_S, OutageDetector
from penstock.edge.auth_fallback.watch import MAX_COUNTED_STEP_S

THRESHOLD_S = 1.0


def silence() -> OutageDetector:
    """Return an outage detector after one response of auth."""
    found = OutageDetector(outage_after=THRESHOLD_S)
    found.on_connected(0.0)
    found.on_request_sent("first", 0.0)
    found.on_response(0.0, "first")
    return found


def test_auth_is_unreachable_once_its_stream_is_down_for_the_threshold():
    found = silence()
    found.on_disconnected(10.0)
    assert not found.is_unreachable(10.999)
    assert found.is_unreachable(11.0)
    assert found.outage_duration(15.0) == 5.0


def test_auth_that_drains_is_unreachable_at_once():
    found = silence()
    found.on_disconnected(10.0, on_purpose=True)
    assert found.is_unreachable(10.0)
    assert found.outage_duration(15.0) == 5.0
    found.on_connected(16.0)
    assert not found.is_unreachable(16.0)


def test_auth_without_a_store_is_unreachable_at_once_also_if_it_responds():
    found = silence()
    found.on_request_sent("a", 10.0)
    found.on_store_state(10.5, is_unavailable=True)
    assert found.is_unreachable(10.5)
    found.on_response(10.6, "a")
    found.check(20.0)
    assert found.is_unreachable(20.0)
    assert found.outage_duration(20.0) == 10.0
    assert found.is_timing
    found.on_store_state(30.0, is_unavailable=False)
    assert not found.is_unreachable(1e9)
    assert found.outage_duration(1e9) == 0.0


def test_requests_without_an_answer_do_not_outlive_the_outage_of_the_store():
    found = silence()
    found.on_request_sent("a", 10.0)
    found.on_store_state(10.5, is_unavailable=True)
    found.on_store_state(30.0, is_unavailable=False)
    assert not found.is_unreachable(30.0)
    found.on_store_state(40.0, is_unavailable=False)
    assert not found.is_unreachable(1e9)


def test_an_auth_that_ends_without_a_store_is_unreachable_at_once_and_the_next_one_is_not():
    found = silence()
    found.on_store_state(10.0, is_unavailable=True)
    found.on_disconnected(12.0)
    assert found.is_unreachable(12.0)
    assert found.outage_duration(15.0) == 5.0
    found.on_connected(16.0)
    assert not found.is_unreachable(16.0)


def test_an_edge_without_a_response_does_not_decide_for_an_auth_without_a_store():
    found = OutageDetector(outage_after=THRESHOLD_S)
    found.on_connected(0.0)
    found.on_store_state(0.0, is_unavailable=True)
    assert not found.is_unreachable(0.5)


def test_auth_is_unreachable_if_it_does_not_answer_pending_requests():
    found = silence()
    found.on_request_sent("a", 10.0)
    found.on_request_sent("b", 10.9)
    assert (found.is_unreachable(10.9), found.is_unreachable(11.0)) == (False, True)


def test_auth_that_answers_other_requests_is_reachable():
    found = silence()
    found.on_request_sent("slow", 10.0)
    for tenth in range(1, 50):
        found.on_request_sent("quick", 10.0 + tenth / 10)
        found.on_response(10.0 + tenth / 10, "quick")
        assert not found.is_unreachable(10.05 + tenth / 10)
    assert found.is_unreachable(16.0)


def test_an_unanswered_request_is_dropped_after_the_response_timeout():
    found = silence()
    found.on_request_sent("forgotten", 10.0)
    found.on_request_sent("a", 20.0)
    found.on_response(20.0, "a")
    assert found.is_unreachable(21.0)
    found.on_request_sent("b", 10.0 + RESPONSE_TIMEOUT_S)
    found.on_response(10.0 + RESPONSE_TIMEOUT_S, "b")
    assert not found.is_unreachable(1e9)


def test_an_idle_auth_is_reachable():
    found = silence()
    assert not found.is_unreachable(1e9)
    found.on_request_sent("a", 10.0)
    found.on_response(10.5, "a")
    assert not found.is_unreachable(1e9)
    assert found.outage_duration(1e9) == 0.0


def test_no_outage_is_declared_before_the_first_response():
    found = OutageDetector(outage_after=THRESHOLD_S)
    for begin in (0.0, 10.0):
        found.on_connected(begin)
        found.on_request_sent("a", begin)
        assert not found.is_unreachable(begin + 9.0)
        found.on_disconnected(begin + 9.0)
        assert not found.is_unreachable(begin + 10.0)
    found.on_connected(20.0)
    found.on_request_sent("a", 20.0)
    found.on_response(20.1, "a")
    found.on_disconnected(30.0)
    assert found.is_unreachable(31.0)


def test_a_reconnected_stream_restarts_the_threshold_but_does_not_end_the_outage():
    found = silence()
    found.on_disconnected(10.0)
    found.on_connected(40.0)
    found.on_request_sent("a", 40.0)
    assert not found.is_unreachable(40.9)
    found.on_disconnected(40.9)
    assert found.is_unreachable(41.0)
    assert found.outage_duration(80.0) == 70.0
    found.on_connected(81.0)
    found.on_request_sent("a", 81.0)
    found.on_response(81.1, "a")
    found.on_disconnected(90.0)
    assert found.outage_duration(91.0) == 1.0


def test_an_idle_outage_ends_once_auth_stays_connected():
    found = silence()
    found.on_disconnected(10.0)
    found.on_connected(12.0)
    found.on_request_sent("a", 300.0)
    assert found.outage_duration(300.5) == 0.5


def test_the_outage_is_checked_from_the_first_pending_request_to_the_response():
    found = OutageDetector(outage_after=THRESHOLD_S)
    found.on_connected(0.0)
    found.on_request_sent("a", 0.0)
    assert not found.is_timing  # an edge that auth never answered waits, however long
    found.on_response(0.1, "a")
    assert not found.is_timing
    found.on_disconnected(10.0)
    assert found.is_timing
    found.on_connected(12.0)
    found.check(12.9)
    assert found.is_timing
    found.check(13.0)
    assert not found.is_timing
    assert found.outage_duration(13.0) == 0.0
    found.on_request_sent("b", 20.0)
    assert found.is_timing


def away_after(polls: list[float], *, since: float) -> float | None:
    """Return when an auth lost at `since` counts as unreachable, checked at the given times. None if it never does."""
    found, ran = silence(), StallFreeClock(MAX_COUNTED_STEP_S)
    found.on_disconnected(ran.at(since))
    return next((now for now in polls if found.is_unreachable(ran.at(now))), None)


def test_a_stall_counts_at_most_one_step_of_silence():
    before = [10.0 + look / 8 for look in range(1, 4)]
    after = [14.0 + look / 8 for look in range(20)]
    assert (
        away_after([*before, *after], since=10.0) == 14.375
    )  # 0.375 s before the stall, one step, and 0.375 s after it


@given(st.lists(st.floats(0.001, 20.0), min_size=1, max_size=60))
def test_auth_is_not_unreachable_before_the_edge_has_run_for_the_threshold(gaps):
    polls = list(itertools.accumulate(gaps, initial=10.0))[1:]
    found = away_after(polls, since=10.0)
    run_times = list(itertools.accumulate(min(gap, MAX_COUNTED_STEP_S) for gap in gaps))
    expected = next((now for now, passed in zip(polls, run_times, strict=True) if passed >= THRESHOLD_S), None)
    if min(abs(passed - THRESHOLD_S) for passed in run_times) > 1e-9:  # except for rounding
        assert found == expected


def test_an_outage_without_stalls_lasts_by_the_clock():
    found, ran = silence(), StallFreeClock(MAX_COUNTED_STEP_S)
    found.on_disconnected(ran.at(10.0))
    for look in range(1, 400):
        assert found.outage_duration(ran.at(10.0 + look / 8)) == look / 8
