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
from penstock.queue.prediction.prefill_backlog import PrefillBacklog
from penstock.queue.prediction.slot_releases import ReleaseCurve
from penstock.queue.prediction.ttft_model import (
    INFLOW_PERSISTENCE_SHARE,
    PlacementStats,
    TokenDemand,
    TtftModel,
    WorkAhead,
    step_costs_of,
)
from penstock.queue.prediction.worker_backlog import PendingPrompt

STEP_S, PREFILL_TOKEN_S = 0.01, 0.0001
RELEASES = tuple(SlotRelease(number / 10, number) for number in range(1, 9))
FULL_POOL = PoolStats(
    0.0,
    step_time=STEP_S,
    slots=8,
    leases=8,
    workers=1,
    decode_step_time=STEP_S,
    seconds_per_prefill_token=PREFILL_TOKEN_S,
    max_step_tokens=520,
    releases=RELEASES,
)
IDLE_POOL = FULL_POOL._replace(leases=0, releases=())


def model_of(stats, now=0.0, inflow=0.0, pending_prompts=()):
    """`pending_prompts`: tokens of prompts at the workers, offered one after the other."""
    backlog = PrefillBacklog()
    for each in pending_prompts:
        backlog.on_offered(PendingPrompt(each), now, max(1, stats.workers), step_costs_of(stats))
    return TtftModel(stats, now, backlog, PlacementStats(inflow))


def ttft_of(stats, ahead, prompt, now=0.0, *, pending_prompts=(), inflow=0.0, shorter=0.5, tokens=0):
    demand = TokenDemand(prompt, tokens or prompt, shorter)
    return model_of(stats, now, inflow, pending_prompts).estimate(ReleaseCurve(stats.releases, 0.0), ahead, demand).ttft


def test_ttft_at_an_idle_worker_is_a_step_and_the_prompt():
    assert ttft_of(IDLE_POOL, WorkAhead(), 100) == pytest.approx(STEP_S + 100 * PREFILL_TOKEN_S)
    assert ttft_of(IDLE_POOL, WorkAhead(), 1_000) == pytest.approx(2 * STEP_S + 1_000 * PREFILL_TOKEN_S), "two budgets"


def test_the_age_of_the_report_is_subtracted():
    assert ttft_of(FULL_POOL, WorkAhead(1), 100, 0.15) == pytest.approx(ttft_of(FULL_POOL, WorkAhead(1), 100) - 0.15)
    assert ttft_of(FULL_POOL, WorkAhead(), 100, 60.0) == pytest.approx(STEP_S + 100 * PREFILL_TOKEN_S)


def test_prompts_ahead_count_as_far_as_they_are_computed_in_the_wait():
    alone = ttft_of(FULL_POOL, WorkAhead(3), 100)
    assert ttft_of(FULL_POOL, WorkAhead(3, prompt_tokens=600), 100) == pytest.approx(alone + 600 * PREFILL_TOKEN_S)
    assert ttft_of(FULL_POOL._replace(pending_prefill_tokens=600), WorkAhead(3), 100) == pytest.approx(
        alone + 600 * PREFILL_TOKEN_S
    )
    assert ttft_of(FULL_POOL._replace(pending_prefill_tokens=600, workers=2), WorkAhead(3), 100) == pytest.approx(
        alone + 300 * PREFILL_TOKEN_S
    )


def test_tickets_placed_since_the_report_use_its_slots():
    assert ttft_of(FULL_POOL.with_ticket_placed(0), WorkAhead(2), 100) == pytest.approx(
        ttft_of(FULL_POOL, WorkAhead(3), 100)
    )


def test_batch_tickets_placed_since_the_report_use_none_of_the_slots_that_are_left_free():
    placed = FULL_POOL._replace(free_slots=3).with_batch_ticket_placed()
    assert placed.free_slots == 2
    assert ttft_of(placed, WorkAhead(2), 100) == ttft_of(FULL_POOL, WorkAhead(2), 100)


def test_a_look_ahead_lease_is_granted_one_slot_earlier():
    ahead = FULL_POOL._replace(leases=9, available_leases=0)
    found = model_of(ahead).estimate(ReleaseCurve(RELEASES, 0.0), WorkAhead(1), TokenDemand(10, 10, 0.5))
    assert found.wait == pytest.approx(0.2)
    assert found.ttft == pytest.approx(0.3 + STEP_S + 10 * PREFILL_TOKEN_S)


def test_a_free_slot_does_not_suffice_if_kv_is_scarce():
    short = FULL_POOL._replace(leases=4, leased_tokens=4_000, free_tokens=500)
    assert ttft_of(short, WorkAhead(), 100, tokens=400) < 0.1
    assert ttft_of(short, WorkAhead(), 100, tokens=2_500) == pytest.approx(0.2 + STEP_S + 100 * PREFILL_TOKEN_S)


def test_a_prompt_waits_for_shorter_ones_at_its_worker_and_for_the_share_of_the_oldest():
    partly_idle = FULL_POOL._replace(leases=2)
    steps = step_costs_of(partly_idle)
    seconds = {tokens: tokens / steps.tokens_per_second + steps.full_step_time / 2 for tokens in (800, 1_600, 2_800)}
    assert ttft_of(partly_idle, WorkAhead(), 600, pending_prompts=(2_000,)) == pytest.approx(seconds[800])
    assert ttft_of(partly_idle, WorkAhead(), 1_600, pending_prompts=(1_000, 9_000)) > seconds[1_600]
    assert ttft_of(partly_idle, WorkAhead(), 1_600, pending_prompts=(1_200,)) == pytest.approx(seconds[2_800], rel=0.1)
    assert ttft_of(partly_idle._replace(workers=2), WorkAhead(), 500, pending_prompts=(2_000,)) < 0.2, (
        "the other worker is idle"
    )


def test_later_prompts_overtake_a_long_prompt_and_not_a_short_one():
    partly_idle = FULL_POOL._replace(leases=2)
    burst = 2 * step_costs_of(partly_idle).tokens_per_second
    without_inflow = ttft_of(partly_idle, WorkAhead(), 900)
    assert ttft_of(partly_idle, WorkAhead(), 900, inflow=burst, shorter=0.0) == without_inflow
    longest = ttft_of(partly_idle, WorkAhead(), 900, inflow=burst, shorter=1.0)
    assert longest == pytest.approx(without_inflow / (1 - INFLOW_PERSISTENCE_SHARE))


def test_one_long_prompt_ahead_does_not_count_as_a_stream_of_long_prompts():
    def ttft(longest):
        model = TtftModel(FULL_POOL, 0.0, PrefillBacklog(), PlacementStats(mean_prompt_tokens=400.0))
        ahead, demand = WorkAhead(1, prompt_tokens=longest), TokenDemand(600, 700, 0.5)
        found = model.estimate(
            ReleaseCurve([SlotRelease(0.1 + each / 100, each) for each in range(1, 33)], 0.0), ahead, demand
        )
        return found.ttft - found.undisturbed_ttft

    assert 0 < ttft(2_000) == pytest.approx(ttft(100))


def test_step_costs_are_known_from_the_first_step_on_unless_a_report_is_invalid():
    assert FULL_POOL._replace(seconds_per_prefill_token=0.0).has_step_costs, "all steps so far took the same time"
    for invalid in (float("nan"), float("inf"), -1.0):
        assert not FULL_POOL._replace(seconds_per_prefill_token=invalid).has_step_costs
    assert not FULL_POOL._replace(max_step_tokens=0).has_step_costs


POOL_STATS = st.builds(
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
    releases=st.sampled_from([(), RELEASES]),
    placed_since=st.integers(0, 50),
)
WORK_AHEAD = st.builds(WorkAhead, *[st.floats(0, 1e5)] * 4)
TOKEN_DEMANDS = st.builds(TokenDemand, st.integers(1, 100_000), st.integers(2, 200_000), st.floats(0, 1))
PENDING_PROMPTS = st.lists(st.integers(1, 50_000), max_size=6)
INFLOW_TOKENS_PER_S = st.floats(0, 1e7)


@given(POOL_STATS, WORK_AHEAD, TOKEN_DEMANDS, st.tuples(st.floats(0, 5), INFLOW_TOKENS_PER_S, PENDING_PROMPTS))
def test_ttft_is_never_less_than_wait_and_half_a_step(stats, ahead, demand, moment):
    found = model_of(stats, *moment).estimate(ReleaseCurve(stats.releases, 1.0), ahead, demand)
    assert 0 <= found.wait <= found.ttft < float("inf")
    assert found.ttft >= stats.decode_step_time / 2


@given(
    POOL_STATS,
    st.lists(st.tuples(WORK_AHEAD, TOKEN_DEMANDS), max_size=6),
    WORK_AHEAD,
    INFLOW_TOKENS_PER_S,
    PENDING_PROMPTS,
)
def test_cached_estimates_equal_separate_ones(stats, tickets, ahead, inflow, pending_prompts):
    curve, together = ReleaseCurve(stats.releases, 1.0), model_of(stats, 0.0, inflow, pending_prompts)
    for before, demand in [*tickets, *((ahead, demand) for _, demand in tickets)]:
        found = together.estimate(curve, before, demand)
        expected = model_of(stats, 0.0, inflow, pending_prompts).estimate(curve, before, demand)
        assert found[:5] == expected[:5]
        assert [each.expected_at for each in found.delays or ()] == [each.expected_at for each in expected.delays or ()]


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
    once, again = ReleaseCurve(RELEASES, 0.0), ReleaseCurve(RELEASES, 0.5)
    assert again.time_of(1) <= once.time_of(1)
    assert again.time_of(8) < once.time_of(8)
    assert again.time_of(20) == pytest.approx(0.5 * 20 / 8, abs=0.6)


def test_two_schedulers_are_combined_to_one_of_twice_the_size():
    half = FULL_POOL._replace(pending_prefill_tokens=300, leased_tokens=80, free_tokens=8)
    both = combined([half, half])
    assert both.slots == 16
    curve = merged_releases([half.releases, half.releases])
    assert ReleaseCurve(curve, 0.0).time_of(16) == pytest.approx(0.8)
    both = both._replace(releases=curve)
    assert ttft_of(both, WorkAhead(7), 100, tokens=1) == pytest.approx(
        ttft_of(half, WorkAhead(3), 100, tokens=1), rel=0.15
    )


def test_prompt_sizes_give_the_share_of_shorter_prompts():
    sizes = PromptSizeHistogram()
    assert sizes.share_of_shorter(10) == 0.5
    for prompt in (100, 100, 200, 1_600):
        sizes.record(prompt)
    shares = [sizes.share_of_shorter(each) for each in (10, 100, 150, 1_000, 3_000)]
    assert shares == [0.0, 0.05, pytest.approx(0.1), 0.2, 1.0]


# Safety margin.


def usable_share_after(errors, predicted=0.8):
    margin = SafetyMargin()
    for error in errors:
        margin.record(predicted * 2.0, predicted * 2.0 + error * 2.0, limit=2.0)
    return margin.usable_share


def test_the_margin_is_small_if_predictions_are_right():
    assert usable_share_after([0.0] * 200) == MAX_USABLE_SHARE


def test_the_margin_is_large_if_some_first_tokens_are_late():
    assert usable_share_after([0.0] * 180 + [0.2] * 20) == pytest.approx(0.8)
    assert usable_share_after([5.0] * 200) == MIN_USABLE_SHARE


def test_few_samples_and_samples_far_from_the_target_do_not_count():
    assert usable_share_after([5.0] * (MIN_MARGIN_SAMPLES - 1)) == INITIAL_USABLE_SHARE
    assert usable_share_after([5.0] * 500, predicted=0.1) == INITIAL_USABLE_SHARE
