"""Budgets: their periods, what reservations and charges use of them, restarts."""

import pytest

from budget_tables import (
    DAY,
    MONEY,
    MONTH,
    NOON,
    TOKENS,
    at,
    policy_of,
    rejection_of,
    reserve,
    restarted,
    table_of,
    use_of,
)
from penstock.auth.identity.policy import Budget, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.budget_period import PeriodUse, period_bounds
from penstock.auth.quota.prices import Price
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_STANDARD


@pytest.mark.parametrize(
    ("period", "now", "start", "end"),
    [
        (DAY, at(2028, 2, 29, 23, 59, 59), at(2028, 2, 29), at(2028, 3, 1)),
        (DAY, at(2028, 3, 1), at(2028, 3, 1), at(2028, 3, 2)),
        (MONTH, at(2028, 2, 29, 23, 59, 59), at(2028, 2, 1), at(2028, 3, 1)),
        (MONTH, at(2027, 2, 28, 23, 59, 59), at(2027, 2, 1), at(2027, 3, 1)),
        (MONTH, at(2027, 12, 31, 23, 59, 59), at(2027, 12, 1), at(2028, 1, 1)),
        (MONTH, at(2028, 1, 1), at(2028, 1, 1), at(2028, 2, 1)),
        (MONTH, at(2100, 2, 28, 12), at(2100, 2, 1), at(2100, 3, 1)),  # no leap year
    ],
)
def test_periods_are_those_of_the_calendar_in_utc(period, now, start, end):
    assert period_bounds(period, now) == (start, end)


def test_a_budget_begins_anew_at_the_end_of_its_period():
    table = table_of(policy_of(Budget(DAY, TOKENS, 30)), now=at(2028, 2, 29, 23))
    reserve(table, now=at(2028, 2, 29, 23))
    assert rejection_of(table, 2, now=at(2028, 2, 29, 23, 59)).retry_after == 60.0
    reserve(table, 3, now=at(2028, 3, 1))


def test_a_request_counts_in_the_period_in_which_it_was_reserved():
    budget = Budget(MONTH, TOKENS, 60)
    table = table_of(policy_of(budget), now=at(2028, 2, 29, 23))
    reserve(table, now=at(2028, 2, 29, 23))
    later = at(2028, 3, 1, 1)
    reserve(table, 2, now=later)
    table.settle("reservation-1", 10, 20, "stop", later)
    assert use_of(table, budget, later) == (0, 30)


def test_a_clock_that_is_set_back_an_hour_over_midnight_does_not_spend_a_budget_twice():
    budget = Budget(DAY, TOKENS, 30)
    table = table_of(policy_of(budget))
    reserve(table, now=at(2028, 2, 29, 0, 10))
    rejection_of(table, 2, now=at(2028, 2, 28, 23, 10))
    assert rejection_of(table, 3, now=at(2028, 2, 29, 0, 30)).retry_after == 23.5 * 3_600
    reserve(table, 4, now=at(2028, 3, 1))


def test_a_clock_that_was_far_ahead_carries_its_use_to_the_present_period():
    use = PeriodUse(MONTH, int(at(2030, 1, 1)), 70, 700, at(2028, 2, 5))
    assert (use.start, use.used_tokens, use.used_nanos) == (at(2028, 2, 1), 70, 700)
    use.advance(at(2028, 3, 1))
    assert (use.start, use.used_tokens) == (at(2028, 3, 1), 0)


# Reservation and settlement.


def test_a_budget_in_tokens_reserves_the_most_and_spends_the_charge():
    budget = Budget(DAY, TOKENS, 100)
    table = table_of(policy_of(budget))
    reserve(table)
    assert use_of(table, budget) == (0, 30)
    table.settle("reservation-1", 10, 7, "stop", NOON)
    assert use_of(table, budget) == (17, 0)


def test_a_budget_in_money_reserves_the_dearest_and_spends_the_cost():
    budget = Budget(MONTH, MONEY, 1_000)
    table = table_of(policy_of(budget))
    reserve(table)
    assert use_of(table, budget) == (0, 50)
    charge = table.settle("reservation-1", 10, 7, "stop", NOON, cached_tokens=4)
    assert charge.price_nanos == 6 + 1 + 14  # 4 cached tokens cost 0.4, rounded up with the rest
    assert use_of(table, budget) == (21, 0)


def test_a_rejection_names_the_budget_and_the_time_at_which_it_begins_anew():
    table = table_of(policy_of(Budget(DAY, TOKENS, 40)))
    reserve(table)
    table.settle("reservation-1", 10, 0, "cancelled", NOON)
    reserve(table, 2, 5, 5)
    error = rejection_of(table, 3)
    assert (error.reason, error.retry_after) == ("BUDGET_EXCEEDED", 12 * 3_600.0)
    assert [each.subject for each in error.quota_violations] == ["tenant:acme"]
    assert error.quota_violations[0].description == (
        "budget of 40 tokens per day: 25.0% is spent, 25.0% is reserved, 20 tokens are left and 30 tokens requested;"
        " it begins anew at 2028-02-29T00:00:00Z"
    )


def test_a_request_above_the_whole_budget_has_no_time_to_retry():
    error = rejection_of(table_of(policy_of(Budget(DAY, TOKENS, 29))))
    assert error.retry_after is None


def test_budgets_of_tenant_and_key_must_both_have_room():
    table = table_of(policy_of(Budget(DAY, TOKENS, 1_000)), policy_of(Budget(MONTH, MONEY, 60)))
    reserve(table)
    error = rejection_of(table, 2)
    assert [each.subject for each in error.quota_violations] == ["key:k"]
    assert error.retry_after == at(2028, 3, 1) - NOON


def test_a_cancelled_reservation_costs_nothing():
    budget = Budget(DAY, MONEY, 100)
    table = table_of(policy_of(budget))
    table.cancel(reserve(table))
    assert use_of(table, budget) == (0, 0)


def test_a_lost_reservation_stays_spent_until_it_is_corrected():
    budget = Budget(DAY, MONEY, 100)
    table = table_of(policy_of(budget))
    reserve(table)
    [charge] = table.expire_edge("edge-1", NOON)
    assert charge.price_nanos == 0
    assert use_of(table, budget) == (50, 0)
    table.settle("reservation-1", 10, 0, "cancelled", NOON)
    assert use_of(table, budget) == (10, 0)


def test_a_continued_answer_reserves_tokens_that_may_be_charged_for_its_earlier_requests():
    budget = Budget(DAY, TOKENS, 100)
    table = table_of(policy_of(budget))
    reserve(table, answer_id="a", emitted_tokens=30)
    assert use_of(table, budget) == (0, 60)
    charge = table.settle("reservation-1", 10, 20, "stop", NOON)
    assert use_of(table, budget) == (charge.prompt_tokens + charge.output_tokens, 0) == (60, 0)


def test_a_fallback_admission_is_the_only_one_beyond_a_budget():
    budget = Budget(DAY, TOKENS, 30)
    table = table_of(policy_of(budget))
    reserve(table)
    reserve(table, 2, is_deferred=True)
    assert use_of(table, budget) == (0, 60)
    rejection_of(table, 3, 0, 1)


def test_a_higher_price_applies_to_later_reservations_only():
    budget = Budget(DAY, MONEY, 50)
    table = table_of(policy_of(budget))
    reserve(table)
    table.prices.put(Price("m", 9_000_000, 9_000_000, 9_000_000))
    assert table.settle("reservation-1", 10, 20, "stop", NOON).price_nanos == 50
    assert use_of(table, budget) == (50, 0)


def test_a_model_without_a_price_costs_nothing_and_is_reported_once():
    table = table_of(policy_of(Budget(DAY, MONEY, 1)), prices=())
    reserve(table), reserve(table, 2)
    assert table.settle("reservation-1", 10, 20, "stop", NOON).price_nanos == 0
    assert (table.prices.pop_unpriced(), table.prices.pop_unpriced(), table.prices.unpriced_models) == (["m"], [], 1)
    table.prices.put(Price("*", 1, 1, 1))
    assert table.prices.unpriced_models == 0


def test_costs_are_rounded_up_and_cached_input_never_costs_more_than_reserved():
    price = Price("m", 3, 1, 5)
    assert [price.cost(1, 0), price.cost(0, 0), price.cost(1_000_000, 1_000_000)] == [1, 0, 8]
    assert price.cost(1_000_000, 0, cached_tokens=2_000_000) == 1


def test_a_percent_of_a_price_is_taken_before_the_cost_is_rounded_up_once():
    price = Price("m", 3, 1, 5)
    costs = [price.cost(1_000_000, 0, percent=percent) for percent in (0, 1, 33, 34, 50, 67, 100)]
    assert costs == [0, 1, 1, 2, 2, 3, 3]
    assert [Price("m", 1, 1, 1).cost(tokens, tokens, percent=50) for tokens in (0, 1, 10**6, 10**6 + 1)] == [0, 1, 1, 2]


@pytest.mark.parametrize(("priority", "most", "spent"), [(PRIORITY_BATCH, 25, 12), (PRIORITY_STANDARD, 50, 24)])
def test_class_batch_reserves_and_pays_its_percent_of_the_price(priority, most, spent):
    budget = Budget(DAY, MONEY, 1_000)
    table = table_of(policy_of(budget), batch_percent=50)
    assert reserve(table, priority=priority).reserved_nanos == most
    assert use_of(table, budget) == (0, most)
    charge = table.settle("reservation-1", 10, 7, "stop", NOON)
    assert (charge.price_nanos, use_of(table, budget)) == (spent, (spent, 0))


def test_a_request_of_class_batch_fits_into_a_budget_that_is_too_small_for_the_full_price():
    table = table_of(policy_of(Budget(DAY, MONEY, 25)), batch_percent=50)
    assert rejection_of(table).reason == "BUDGET_EXCEEDED"
    assert reserve(table, priority=PRIORITY_BATCH).reserved_nanos == 25
    assert rejection_of(table, 2, priority=PRIORITY_BATCH).reason == "BUDGET_EXCEEDED"


def test_a_deferred_request_of_class_batch_pays_as_any_other_one_of_its_class():
    table = table_of(policy_of(Budget(DAY, MONEY, 1)), batch_percent=50)
    assert reserve(table, priority=PRIORITY_BATCH, is_deferred=True).reserved_nanos == 25
    assert table.settle("reservation-1", 10, 20, "stop", NOON).price_nanos == 25


# Changes.


def test_a_changed_budget_keeps_what_was_used_also_in_another_unit_and_period():
    table = table_of(policy_of(Budget(DAY, TOKENS, 100)))
    reserve(table)
    month = Budget(MONTH, MONEY, 60)
    table.put_tenant(Tenant(tenant_id="acme", policy=policy_of(month)), NOON)
    assert use_of(table, month) == (0, 50)
    rejection_of(table, 2)


def test_a_reservation_from_before_the_budget_is_not_counted_in_it():
    table = table_of(Policy())
    reserve(table)
    budget = Budget(DAY, TOKENS, 30)
    table.put_tenant(Tenant(tenant_id="acme", policy=policy_of(budget)), NOON)
    table.settle("reservation-1", 0, 0, "cancelled", NOON)
    assert use_of(table, budget) == (0, 0)
    reserve(table, 2)
    rejection_of(table, 3)


def test_a_warning_begins_at_the_soft_share():
    table = table_of(policy_of(Budget(DAY, TOKENS, 100), soft_share=0.6))
    quota = table.quota("acme")
    assert quota.budget_warning(reserve(table), NOON) == ""
    assert quota.budget_warning(reserve(table, 2), NOON) == "tenant:acme has used 60.0% of its budget day_tokens"


def test_a_budget_in_shadow_mode_counts_and_refuses_nothing():
    budget = Budget(DAY, TOKENS, 30)
    table = table_of(policy_of(budget, shadow=True))
    reserve(table), reserve(table, 2)
    assert use_of(table, budget) == (0, 60)
    assert table.quota("acme").shadow_refusals == {"tenant:acme budget_day_tokens": 1}


def test_a_fallback_grant_is_at_most_what_the_budgets_of_tenant_and_key_leave():
    table = table_of(policy_of(Budget(DAY, TOKENS, 1_000)), policy_of(Budget(MONTH, MONEY, 100)))
    made = reserve(table)
    quota, highest = table.quota("acme"), table.prices.highest_nanos
    assert quota.tokens_left(NOON, made.request, highest) == 25  # 50 nanos at 2 nanos per token
    assert quota.tokens_left(NOON) == 970


# Restarts.


def test_a_restart_keeps_what_is_spent_and_reserved():
    budget = Budget(MONTH, MONEY, 100)
    before = table_of(policy_of(budget))
    reserve(before)
    before.settle("reservation-1", 10, 0, "stop", NOON)
    held = reserve(before, 2)
    after = restarted(before, [held], policy=policy_of(budget))
    assert use_of(after, budget) == use_of(before, budget) == (10, 50)
    after.settle("reservation-2", 10, 7, "stop", NOON)
    assert use_of(after, budget) == (34, 0)


def test_a_higher_price_after_a_restart_gives_back_and_charges_at_most_the_reservation():
    budget = Budget(MONTH, MONEY, 100)
    before = table_of(policy_of(budget))
    held = reserve(before)
    dear = (Price("m", 9_000_000, 9_000_000, 9_000_000),)
    after = restarted(before, [held], policy=policy_of(budget), prices=dear)
    assert after.settle("reservation-1", 10, 20, "stop", NOON).price_nanos == 50
    assert use_of(after, budget) == (50, 0)


def test_a_lost_reservation_stays_spent_over_a_restart_and_its_correction_frees_tokens_but_no_money():
    policy = policy_of(Budget(DAY, MONEY, 100), Budget(DAY, TOKENS, 100))
    before = table_of(policy)
    held = reserve(before)
    before.expire_edge("edge-1", NOON)
    after = restarted(before, [], [held], policy=policy)
    charge = after.settle("reservation-1", 10, 0, "cancelled", NOON)
    assert charge.price_nanos == 10
    assert [use_of(after, each) for each in policy.budgets] == [(50, 0), (10, 0)]


def test_a_restart_in_the_next_period_begins_the_budget_anew():
    budget = Budget(DAY, TOKENS, 30)
    before = table_of(policy_of(budget))
    held = reserve(before)
    tomorrow = at(2028, 2, 29, 1)
    after = restarted(before, [held], policy=policy_of(budget), now=tomorrow)
    assert use_of(after, budget, tomorrow) == (0, 0)
    after.settle("reservation-1", 0, 0, "cancelled", tomorrow)
    assert use_of(after, budget, tomorrow) == (0, 0)


# Exactness.
