"""The TTFT model: predictions from slot releases, step costs and pending prefills."""

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


def test_ttft_at_an_idle_worker_is_a_step_and_the_prompt():
    assert first_token(IDLE, WorkAhead(), 100) == pytest.approx(STEP + 100 * TOKEN)
    assert first_token(IDLE, WorkAhead(), 1_000) == pytest.approx(2 * STEP + 1_000 * TOKEN), "two budgets"


def test_the_age_of_the_report_is_subtracted():
    later = NOW._replace(report_age=0.15)
    assert first_token(FULL, WorkAhead(1), 100, later) == pytest.approx(first_token(FULL, WorkAhead(1), 100) - 0.15)
    assert first_token(FULL, WorkAhead(), 100, NOW._replace(report_age=60.0)) == pytest.approx(STEP + 100 * TOKEN)


def test_prompts_ahead_count_as_far_as_they_are_computed_meanwhile():
    alone = first_token(FULL, WorkAhead(3), 100)
    assert first_token(FULL, WorkAhead(3, prompt_tokens=600), 100) == pytest.approx(alone + 600 * TOKEN)
    assert first_token(FULL._replace(pending_prefill_tokens=600), WorkAhead(3), 100) == pytest.approx(
        alone + 600 * TOKEN
    )
    assert first_token(FULL._replace(pending_prefill_tokens=600, workers=2), WorkAhead(3), 100) == pytest.approx(
        alone + 300 * TOKEN
    )


def test_tickets_placed_since_the_report_use_its_slots():
    assert first_token(FULL.with_ticket_placed(0), WorkAhead(2), 100) == pytest.approx(
        first_token(FULL, WorkAhead(3), 100)
    )


def test_a_look_ahead_lease_is_granted_one_slot_earlier():
    ahead = FULL._replace(leases=9, available_leases=0)
    found = TtftModel(ahead, NOW).estimate(ReleaseCurve(ENDS, 0.0), WorkAhead(1), TokenDemand(10, 10, 0.5))
    assert found.wait == pytest.approx(0.2)
    assert found.ttft == pytest.approx(0.3 + STEP + 10 * TOKEN)


def test_a_free_slot_does_not_suffice_if_kv_is_scarce():
    short = FULL._replace(leases=4, leased_tokens=4_000, free_tokens=500)
    assert first_token(short, WorkAhead(), 100, tokens=400) < 0.1
    assert first_token(short, WorkAhead(), 100, tokens=2_500) == pytest.approx(0.2 + STEP + 100 * TOKEN)


def test_long_prompts_wait_for_shorter_ones_and_short_ones_do_not():
    busy = FULL._replace(leases=2, pending_prefill_tokens=2_000)
    burst = NOW._replace(prompt_tokens_per_second=40_000.0, mean_prompt_tokens=400.0)
    assert first_token(busy, WorkAhead(), 50, burst, shorter=0.02) == pytest.approx(
        first_token(busy, WorkAhead(), 50, shorter=0.02), rel=0.3
    )
    assert first_token(busy, WorkAhead(), 900, burst, shorter=0.9) > 1.5 * first_token(
        busy, WorkAhead(), 900, shorter=0.9
    )


def test_prompts_that_pass_are_limited_by_slots():
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
def test_ttft_is_never_less_than_wait_and_a_step(speed, line, ask, now):
    found = TtftModel(speed, now).estimate(ReleaseCurve(speed.releases, 1.0), line, ask)
    assert 0 <= found.wait <= found.ttft < float("inf")
    assert found.ttft >= speed.decode_step_time


@given(SPEEDS, st.lists(st.tuples(LINES, ASKS), max_size=6), LINES, COMES)
def test_cached_estimates_equal_separate_ones(speed, tickets, line, now):
    curve, together = ReleaseCurve(speed.releases, 1.0), TtftModel(speed, now)
    for before, ask in [*tickets, *((line, ask) for _, ask in tickets)]:
        assert together.estimate(curve, before, ask) == TtftModel(speed, now).estimate(curve, before, ask)


@given(st.lists(st.tuples(st.floats(0.001, 5.0), st.integers(1, 9)), max_size=12), st.floats(0.01, 10.0))
def test_release_times_grow_with_the_number_of_slots(gaps, mean):
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
            "in the long run each slot is released once per mean hold time"
        )


def test_a_used_slot_is_released_again():
    once, again = ReleaseCurve(ENDS, 0.0), ReleaseCurve(ENDS, 0.5)
    assert again.time_of(1) <= once.time_of(1)
    assert again.time_of(8) < once.time_of(8)
    assert again.time_of(20) == pytest.approx(0.5 * 20 / 8, abs=0.6)


def test_two_schedulers_are_combined_to_one_of_twice_the_size():
    half = FULL._replace(pending_prefill_tokens=300, leased_tokens=80, free_tokens=8)
    both = combined([half, half])
    assert both.slots == 16
    curve = merged_releases([half.releases, half.releases])
    assert ReleaseCurve(curve, 0.0).time_of(16) == pytest.approx(0.8)
    both = both._replace(releases=curve)
    assert first_token(both, WorkAhead(7), 100, tokens=1) == pytest.approx(
        first_token(half, WorkAhead(3), 100, tokens=1), rel=0.15
    )


def test_prompt_sizes_give_the_share_of_shorter_prompts():
    sizes = PromptSizeHistogram()
    assert sizes.share_of_shorter(10) == 0.5
    for prompt in (100, 100, 200, 1_600):
        sizes.record(prompt)
    shares = [sizes.share_of_shorter(each) for each in (10, 100, 150, 1_000, 3_000)]
    assert shares == [0.0, 0.05, pytest.approx(0.1), 0.2, 1.0]


# Safety margin.


def learnt(errors, predicted=0.8):
    margin = SafetyMargin()
    for error in errors:
        margin.record(predicted * 2.0, predicted * 2.0 + error * 2.0, limit=2.0)
    return margin.usable_share


def test_the_margin_is_small_if_predictions_are_right():
    assert learnt([0.0] * 200) == MAX_USABLE_SHARE


def test_the_margin_is_large_if_some_first_tokens_are_late():
    assert learnt([0.0] * 180 + [0.2] * 20) == pytest.approx(0.8)
    assert learnt([5.0] * 200) == MIN_USABLE_SHARE


def test_few_samples_and_samples_far_from_the_target_do_not_count():
    assert learnt([5.0] * (MIN_MARGIN_SAMPLES - 1)) == INITIAL_USABLE_SHARE
    assert learnt([5.0] * 500, predicted=0.1) == INITIAL_USABLE_SHARE
