"""Predictions of TTFT from work ahead, measured rates and corrections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.queue.prediction.estimators import DEFAULT_OUTPUT_TOKENS, MIN_HISTORY_ANSWERS, OutputLengthPredictor
from penstock.queue.prediction.forecast import CORRECTION_BOUNDS, MAX_RECENT_WAITS, SATURATION_DELAY_S, Forecast
from penstock.queue.prediction.pool_stats import PoolStats, ServiceRate, SlotRelease
from penstock.queue.prediction.ttft_model import WorkAhead
from queue_tickets import BATCH, START_UNIX_S, ticket

FULL_POOL = PoolStats(
    START_UNIX_S, tokens_per_second=1_000.0, prefill_tokens_per_second=500.0, next_worker_backlog=100, step_time=0.01
)


def measured():
    forecast = Forecast()
    forecast.service_rate.saturated = 1_000.0
    return forecast


def test_ttft_is_wait_plus_backlog_plus_own_prompt_plus_a_step():
    found = measured().predict(ticket("t", tokens=60), WorkAhead(9, 900), [FULL_POOL], 0, START_UNIX_S)
    assert found.wait == pytest.approx(1.0), "nine tickets ahead and its own"
    assert found.after_lease == pytest.approx(100 / 500 + 50 / 500 + 0.01)
    assert found.ttft == pytest.approx(1.0 + 100 / 500 + 50 / 500 + 0.01)


def test_free_slots_take_a_burst_at_once():
    idle = PoolStats(START_UNIX_S, tokens_per_second=20.0, free_slots=64)
    found = Forecast().predict(ticket("t"), WorkAhead(40, 4_000), [idle], 0, START_UNIX_S)
    assert found.wait == 0


def test_free_slots_are_ignored_while_tickets_wait():
    forecast = measured()
    forecast.record_unserved(3, 0, START_UNIX_S)
    roomy = PoolStats(START_UNIX_S, free_slots=64)
    assert forecast.predict(ticket("t"), WorkAhead(3, 300), [roomy], 0, START_UNIX_S + SATURATION_DELAY_S / 2).wait == 0
    assert forecast.predict(
        ticket("t"), WorkAhead(3, 300), [roomy], 0, START_UNIX_S + 2 * SATURATION_DELAY_S
    ).wait == pytest.approx(0.4)
    forecast.record_unserved(0, 0, START_UNIX_S + 1)
    assert (
        forecast.predict(ticket("t"), WorkAhead(3, 300), [roomy], 0, START_UNIX_S + 1 + 2 * SATURATION_DELAY_S).wait
        == 0
    )


def test_batch_tickets_that_wait_leave_the_free_slots_to_others():
    forecast, roomy, later = measured(), PoolStats(START_UNIX_S, free_slots=64), START_UNIX_S + 2 * SATURATION_DELAY_S
    forecast.record_unserved(3, 3, START_UNIX_S)
    assert forecast.predict(ticket("t"), WorkAhead(3, 300), [roomy], 0, later).wait == 0
    behind = forecast.predict(ticket("t", priority=BATCH), WorkAhead(3, 300), [roomy], 0, later)
    assert behind.wait == pytest.approx(0.4)


def test_nothing_is_predicted_without_measurements():
    assert Forecast().predict(ticket("t"), WorkAhead(5, 500), [], 0, START_UNIX_S).ttft is None
    assert Forecast().predict(ticket("t"), WorkAhead(5, 500), [FULL_POOL], 0, START_UNIX_S).ttft is None


def test_the_rate_of_a_small_batch_does_not_change_that_of_a_full_one():
    rate = ServiceRate()
    rate.record([PoolStats(START_UNIX_S, tokens_per_second=20.0)], is_saturated=False)
    assert rate.saturated == 0
    rate.record(
        [PoolStats(START_UNIX_S, tokens_per_second=900.0), PoolStats(START_UNIX_S, tokens_per_second=100.0)],
        is_saturated=True,
    )
    rate.record([PoolStats(START_UNIX_S, tokens_per_second=20.0)], is_saturated=False)
    assert rate.saturated == 1_000
    rate.record([PoolStats(START_UNIX_S, tokens_per_second=1_200.0)], is_saturated=False)
    assert rate.saturated == 1_200
    rate.record([PoolStats(START_UNIX_S, tokens_per_second=500.0)], is_saturated=True)
    assert rate.saturated == 500


@pytest.mark.parametrize("truth", [0.5, 1.0, 2.0])
def test_predictions_that_are_wrong_by_a_factor_are_corrected(truth):
    forecast = measured()
    for _ in range(300):
        found = forecast.predict(ticket("t"), WorkAhead(9, 900), [FULL_POOL], 0, START_UNIX_S)
        forecast.record_wait(found.wait, found.raw_wait, truth * found.raw_wait)
    assert forecast.correction == pytest.approx(truth, rel=0.01)
    assert abs(forecast.recent_waits[-1].lateness) < 0.02 * forecast.recent_waits[-1].realised


POOL_WITH_STEP_COSTS = PoolStats(
    START_UNIX_S,
    step_time=0.03,
    slots=4,
    leases=4,
    workers=1,
    decode_step_time=0.01,
    seconds_per_prefill_token=0.0001,
    max_step_tokens=512,
    releases=(SlotRelease(0.1, 1), SlotRelease(0.2, 2), SlotRelease(0.3, 3), SlotRelease(0.4, 4)),
)


def test_with_a_release_curve_a_ticket_waits_for_the_slots_before_it():
    found = Forecast().predict(
        ticket("t", tokens=60), WorkAhead(1, 5_050, 50, 5_050), [POOL_WITH_STEP_COSTS], 0, START_UNIX_S
    )
    assert found.wait == pytest.approx(0.2 + 50 * 0.0001), "two slot releases, and the prompts computed in that time"
    assert found.ttft == pytest.approx(found.wait + 0.01 + 50 * 0.0001), "plus a step with its own prompt"


def test_released_slots_are_used_by_tickets_ahead_before_they_are_released_again():
    long, short = (
        Forecast()
        .predict(ticket("t"), WorkAhead(40, 40 * (90 + answer), 40 * 90), [POOL_WITH_STEP_COSTS], 0, START_UNIX_S)
        .wait
        for answer in (300, 1)
    )
    assert long > 20
    assert short < 1


def test_late_first_tokens_raise_later_predictions():
    forecast = Forecast()
    for _ in range(300):
        found = forecast.predict(ticket("t"), WorkAhead(2, 200, 180, 200), [POOL_WITH_STEP_COSTS], 0, START_UNIX_S)
        forecast.record_ratio(found.raw_ttft, 1.5 * found.raw_ttft)
    assert forecast.correction == pytest.approx(1.5, rel=0.01)
    again = forecast.predict(ticket("t"), WorkAhead(2, 200, 180, 200), [POOL_WITH_STEP_COSTS], 0, START_UNIX_S)
    assert again.ttft == pytest.approx(1.5 * again.raw_ttft, rel=0.01)
    assert again.wait + again.after_lease == pytest.approx(again.ttft)


def test_one_scheduler_without_step_costs_makes_all_predictions_use_rates():
    forecast = measured()
    found = forecast.predict(
        ticket("t", tokens=60), WorkAhead(9, 900), [FULL_POOL, POOL_WITH_STEP_COSTS], 0, START_UNIX_S
    )
    assert found.wait == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(0, 1e6)), max_size=50))
def test_corrections_stay_within_their_bounds(waits):
    forecast = Forecast()
    for raw, realised in waits:
        forecast.record_wait(raw, raw, realised)
    assert CORRECTION_BOUNDS[0] <= forecast.correction <= CORRECTION_BOUNDS[1]
    assert len(forecast.recent_waits) <= MAX_RECENT_WAITS


def test_answer_lengths_are_predicted_per_tenant():
    lengths = OutputLengthPredictor()
    for _ in range(50):
        lengths.record("m", "short", 1_000, 20)
        lengths.record("m", "long", 1_000, 600)
    assert lengths.predict("m", "short", 1_000) == 20
    assert lengths.predict("m", "long", 1_000) == 600
    assert lengths.predict("m", "long", 100) == 100, "never more than the limit"
    assert 20 < lengths.predict("m", "new", 1_000) < 600


def test_answer_lengths_follow_the_limit_if_tenants_use_it_fully():
    lengths = OutputLengthPredictor()
    for number in range(200):
        lengths.record("m", "exact", 100 + 90 * (number % 10), (100 + 90 * (number % 10)) // 2)
    assert lengths.predict("m", "exact", 400) == pytest.approx(200, abs=2)


def test_an_unknown_model_has_the_default_answer_length():
    assert OutputLengthPredictor().predict("m", "t", 100_000) == DEFAULT_OUTPUT_TOKENS
    assert OutputLengthPredictor().predict("m", "t", 5) == 5


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1)), max_size=40), st.integers(1, 10_000))
def test_predicted_lengths_are_from_one_to_the_limit(answers, most):
    lengths = OutputLengthPredictor()
    for limit, share in answers:
        lengths.record("m", "t", limit, max(1, round(limit * share)))
    assert 1 <= lengths.predict("m", "t", most) <= most


def test_a_new_tenant_has_the_mean_of_its_model():
    lengths = OutputLengthPredictor()
    for _ in range(20):
        lengths.record("m", "others", 1_000, 50)
    for _ in range(MIN_HISTORY_ANSWERS):
        lengths.record("m", "new", 1_000, 500)
    assert lengths.predict("m", "new", 1_000) == 500
