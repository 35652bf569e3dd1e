"""What a ticket may expect from when slots fall free, what a step takes and what else is to be prefilled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.prediction.estimators import (
    INITIAL_USABLE_SHARE,
    MAX_USABLE_SHARE,
    MIN_MARGIN_SAMPLES,
    MIN_USABLE_SHARE,
    PromptSizeHistogram,
    SafetyMargin,
)
from penstock.queue.prediction.pool_stats import PoolStats, SlotRelease, combined, merged_releases
from penstock.queue.prediction.slot_releases import ReleaseCurve
from penstock.queue.prediction.ttft_model import ArrivalStats, TokenDemand, TtftModel, WorkAhead

STEP, TOKEN = 0.01, 0.0001  # s
NOW = ArrivalStats(report_age=0.0, prompt_tokens_per_second=0.0, mean_prompt_tokens=100.0)
ENDS = tuple(SlotRelease(number / 10, number) for number in range(1, 9))
FULL = PoolStats(
    0.0,
    step_time=STEP,
    slots=8,
    leases=8,
    workers=1,
    decode_step_time=STEP,
    seconds_per_prefill_token=TOKEN,
    max_step_tokens=520,
    releases=ENDS,
)
IDLE = FULL._replace(leases=0, releases=())


def first_token(speed, line, prompt, now=NOW, *, shorter=0.5, tokens=0):
    ask = TokenDemand(prompt, tokens or prompt, shorter)
    return TtftModel(speed, now).estimate(ReleaseCurve(speed.releases, 0.0), line, ask).ttft


def test_an_idle_worker_takes_a_step_and_the_prompt():
    assert first_token(IDLE, WorkAhead(), 100) == pytest.approx(STEP + 100 * TOKEN)
    assert first_token(IDLE, WorkAhead(), 1_000) == pytest.approx(2 * STEP + 1_000 * TOKEN), "two budgets"


def test_the_time_that_has_passed_since_the_report_is_not_waited_for_again():
    later = NOW._replace(report_age=0.15)
    assert first_token(FULL, WorkAhead(1), 100, later) == pytest.approx(first_token(FULL, WorkAhead(1), 100) - 0.15)
    assert first_token(FULL, WorkAhead(), 100, NOW._replace(report_age=60.0)) == pytest.approx(STEP + 100 * TOKEN)


def test_prompts_that_go_first_are_waited_for_as_far_as_they_are_computed_meanwhile():
    alone = first_token(FULL, WorkAhead(3), 100)
    assert first_token(FULL, WorkAhead(3, prompt_tokens=600), 100) == pytest.approx(alone + 600 * TOKEN)
    assert first_token(FULL._replace(pending_prefill_tokens=600), WorkAhead(3), 100) == pytest.approx(
        alone + 600 * TOKEN
    )
    assert first_token(FULL._replace(pending_prefill_tokens=600, workers=2), WorkAhead(3), 100) == pytest.approx(
        alone + 300 * TOKEN
    )


def test_what_was_placed_since_the_report_takes_slots_of_it():
    assert first_token(FULL.with_ticket_placed(0), WorkAhead(2), 100) == pytest.approx(
        first_token(FULL, WorkAhead(3), 100)
    )


def test_a_lease_that_waits_at_the_worker_is_given_one_slot_earlier():
    ahead = FULL._replace(leases=9, available_leases=0)
    found = TtftModel(ahead, NOW).estimate(ReleaseCurve(ENDS, 0.0), WorkAhead(1), TokenDemand(10, 10, 0.5))
    assert found.wait == pytest.approx(0.2)
    assert found.ttft == pytest.approx(0.3 + STEP + 10 * TOKEN)


def test_where_kv_is_short_a_free_slot_is_not_enough():
    short = FULL._replace(leases=4, leased_tokens=4_000, free_tokens=500)
    assert first_token(short, WorkAhead(), 100, tokens=400) < 0.1
    assert first_token(short, WorkAhead(), 100, tokens=2_500) == pytest.approx(0.2 + STEP + 100 * TOKEN)


def test_a_long_prompt_waits_for_what_passes_it_and_a_short_one_does_not():
    busy = FULL._replace(leases=2, pending_prefill_tokens=2_000)
    burst = NOW._replace(prompt_tokens_per_second=40_000.0, mean_prompt_tokens=400.0)
    assert first_token(busy, WorkAhead(), 50, burst, shorter=0.02) == pytest.approx(
        first_token(busy, WorkAhead(), 50, shorter=0.02), rel=0.3
    )
    assert first_token(busy, WorkAhead(), 900, burst, shorter=0.9) > 1.5 * first_token(
        busy, WorkAhead(), 900, shorter=0.9
    )


def test_no_more_passes_a_prompt_than_there_are_slots_for():
    last = FULL._replace(leases=7, pending_prefill_tokens=2_000)
    flood = NOW._replace(prompt_tokens_per_second=1e9)
    assert first_token(last, WorkAhead(), 400, flood, shorter=0.9) == pytest.approx(
        first_token(last, WorkAhead(), 400, shorter=0.9)
    )


SPEEDS = st.builds(
    PoolStats,
    received_at=st.just(0.0),
    step_time=st.floats(0.001, 1),
    slots=st.integers(1, 300),
    leases=st.integers(0, 310),
    available_leases=st.integers(0, 300),
    workers=st.integers(0, 4),
    pending_prefill_tokens=st.floats(0, 1e6),
    decode_step_time=st.floats(1e-4, 1),
    seconds_per_prefill_token=st.floats(1e-7, 0.01),
    max_step_tokens=st.integers(0, 10_000),
    leased_tokens=st.integers(0, 10**6),
    free_tokens=st.integers(0, 10**6),
    releases=st.sampled_from([(), ENDS]),
    placed_since=st.integers(0, 50),
)
LINES = st.builds(WorkAhead, *[st.floats(0, 1e5)] * 4)
ASKS = st.builds(TokenDemand, st.integers(1, 100_000), st.integers(2, 200_000), st.floats(0, 1))
COMES = st.builds(ArrivalStats, st.floats(0, 5), st.floats(0, 1e7), st.floats(0, 1e5))


@given(SPEEDS, LINES, ASKS, COMES)
def test_whatever_is_reported_a_first_token_comes_after_its_lease_and_after_its_own_prompt(speed, line, ask, now):
    found = TtftModel(speed, now).estimate(ReleaseCurve(speed.releases, 1.0), line, ask)
    assert 0 <= found.wait <= found.ttft < float("inf")
    assert found.ttft >= speed.decode_step_time


@given(SPEEDS, st.lists(st.tuples(LINES, ASKS), max_size=6), LINES, COMES)
def test_asking_one_moment_about_many_tickets_tells_what_asking_about_each_alone_does(speed, tickets, line, now):
    curve, together = ReleaseCurve(speed.releases, 1.0), TtftModel(speed, now)
    for before, ask in [*tickets, *((line, ask) for _, ask in tickets)]:
        assert together.estimate(curve, before, ask) == TtftModel(speed, now).estimate(curve, before, ask)


@given(st.lists(st.tuples(st.floats(0.001, 5.0), st.integers(1, 9)), max_size=12), st.floats(0.01, 10.0))
def test_the_more_slots_are_asked_for_the_later_it_is(gaps, mean):
    releases, after, leases = [], 0.0, 0
    for gap, more in gaps:
        after, leases = after + gap, leases + more
        releases.append(SlotRelease(after, leases))
    curve = ReleaseCurve(releases, mean)
    times = [curve.time_of(count / 2) for count in range(4 * leases)]
    assert times == sorted(times)
    if releases:
        far = curve.time_of(1_000_000 * leases) - curve.time_of(999_900 * leases)
        assert far == pytest.approx(100 * mean, rel=1e-3), (
            "in the long run each slot is given anew once in the mean time"
        )


def test_a_slot_given_anew_falls_free_again():
    once, again = ReleaseCurve(ENDS, 0.0), ReleaseCurve(ENDS, 0.5)
    assert again.time_of(1) <= once.time_of(1)
    assert again.time_of(8) < once.time_of(8)
    assert again.time_of(20) == pytest.approx(0.5 * 20 / 8, abs=0.6)


def test_two_schedulers_are_as_good_as_one_of_twice_the_size():
    half = FULL._replace(pending_prefill_tokens=300, leased_tokens=80, free_tokens=8)
    both = combined([half, half])
    assert both.slots == 16
    curve = merged_releases([half.releases, half.releases])
    assert ReleaseCurve(curve, 0.0).time_of(16) == pytest.approx(0.8)
    both = both._replace(releases=curve)
    assert first_token(both, WorkAhead(7), 100, tokens=1) == pytest.approx(
        first_token(half, WorkAhead(3), 100, tokens=1), rel=0.15
    )


def test_of_what_is_heard_of_prompts_the_shares_of_shorter_ones_follow():
    sizes = PromptSizeHistogram()
    assert sizes.share_of_shorter(10) == 0.5
    for prompt in (100, 100, 200, 1_600):
        sizes.record(prompt)
    shares = [sizes.share_of_shorter(each) for each in (10, 100, 150, 1_000, 3_000)]
    assert shares == [0.0, 0.05, pytest.approx(0.1), 0.2, 1.0]


# How much of a promise a prediction may take.


def learnt(errors, predicted=0.8):
    margin = SafetyMargin()
    for error in errors:
        margin.record(predicted * 2.0, predicted * 2.0 + error * 2.0, limit=2.0)
    return margin.usable_share


def test_little_is_left_of_a_promise_where_predictions_are_right():
    assert learnt([0.0] * 200) == MAX_USABLE_SHARE


def test_much_is_left_where_some_come_far_later_than_was_said():
    assert learnt([0.0] * 180 + [0.2] * 20) == pytest.approx(0.8)
    assert learnt([5.0] * 200) == MIN_USABLE_SHARE


def test_a_few_first_tokens_and_those_far_from_their_promise_say_nothing():
    assert learnt([5.0] * (MIN_MARGIN_SAMPLES - 1)) == INITIAL_USABLE_SHARE
    assert learnt([5.0] * 500, predicted=0.1) == INITIAL_USABLE_SHARE
