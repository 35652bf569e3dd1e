"""Budgets: tokens or money per day or month are never overspent, and nearly all of a budget can be used."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.auth.config import AuthConfig
from penstock.auth.identity.keys import Key, mint
from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.budget_period import PeriodUse, period_bounds
from penstock.auth.quota.prices import Price, PriceList
from penstock.auth.quota.reservation import ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.store.recovery import recover
from penstock.auth.store.store import StoredState
from penstock.chassis.errors import QuotaExceeded
from penstock.mesh.v1.admission_pb2 import Credential, Reserve, Settle

DAY, MONTH, TOKENS, MONEY = BudgetPeriod.DAY, BudgetPeriod.MONTH, BudgetUnit.TOKENS, BudgetUnit.MONEY
PRICE = Price("m", 1_000_000, 100_000, 2_000_000)  # 1, 0.1 and 2 nanos per token
NOON = datetime(2028, 2, 28, 12, tzinfo=UTC).timestamp()


def at(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()


def policy_of(*budgets: Budget, soft_share=0.0, shadow=False) -> Policy:
    return Policy(budgets=budgets, soft_share=soft_share, shadow=shadow)


def table_of(policy: Policy, key: Policy | None = None, *, uses=(), now=NOON, prices=(PRICE,)) -> ReservationTable:
    found = ReservationTable(ttl=1e9, prices=PriceList(prices))
    quota = found.put_tenant(Tenant(tenant_id="acme", policy=policy), now, None, uses)
    if key:
        quota.set_key("k", key, now)
    return found


def reserve(table, number=1, prompt=10, output=20, *, now=NOON, edge="edge-1", is_deferred=False, **more):
    request = ReservationRequest(
        request_id=f"request-{number}",
        tenant_id="acme",
        key_id="k",
        edge_id=edge,
        model="m",
        prompt_tokens=prompt,
        max_output_tokens=output,
        **more,
    )
    return table.reserve(request, f"reservation-{number}", now, is_deferred=is_deferred)


def rejection_of(table, number=1, *given, **more) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as raised:
        reserve(table, number, *given, **more)
    return raised.value


def use_of(table, budget: Budget, now=NOON) -> tuple[int, int]:
    spent, reserved, _ = table.quota("acme").scope().budget_use(budget, now)
    return spent, reserved


# Periods.


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


def restarted(table: ReservationTable, live, lost=(), *, policy, now=NOON, prices=(PRICE,)) -> ReservationTable:
    """Return a table with the state that the store has."""
    after = table_of(policy, uses=[table.quota("acme").scope().use], now=now, prices=prices)
    after.restore(map(as_stored, live), map(as_stored, lost))
    return after


def as_stored(reservation):
    return replace(reservation, metering=reservation.metering._replace(price=None, holds=()))


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


@pytest.mark.parametrize("seed", range(3))
def test_10_000_requests_of_8_edges_never_overspend_a_month_and_use_nearly_all_of_it(seed):
    """Interleaved reservations, settlements, cancels and lost edges that correct their charges later, and restarts."""
    draw = random.Random(seed)
    budget = Budget(MONTH, MONEY, 4_000_000)  # nanos; a request reserves at most 2,500
    policy = policy_of(budget)
    table, now, charges, open_ids, rejected = table_of(policy), NOON, {}, [], 0
    for number in range(10_000):
        now += draw.expovariate(10.0)
        try:
            made = reserve(
                table, number, draw.randrange(500), draw.randrange(1_000), now=now, edge=f"edge-{number % 8}"
            )
            open_ids.append(made.reservation_id)
        except QuotaExceeded:
            rejected += 1
        while len(open_ids) > 64:
            settle_one(table, open_ids, charges, draw, now)
        if draw.random() < 0.002:
            table.expire_edge(f"edge-{draw.randrange(8)}", now)
        if draw.random() < 0.001:
            live, lost = list(table._live.values()), list(table._lost.values())
            table = restarted(table, live, lost, policy=policy, now=now)
        spent, reserved = use_of(table, budget, now)
        assert sum(charges.values()) <= spent
        assert spent + reserved <= budget.amount
    while open_ids:
        settle_one(table, open_ids, charges, draw, now)
    spent, reserved = use_of(table, budget, now)
    assert rejected
    assert reserved == 0
    assert 0.99 * budget.amount <= spent <= budget.amount


def settle_one(table, open_ids, charges, draw, now) -> None:
    reservation_id = open_ids.pop(draw.randrange(len(open_ids)))
    charge = table.settle(reservation_id, draw.randrange(500), draw.randrange(1_000), "stop", now)
    if charge:
        charges[reservation_id] = charge.price_nanos


BUDGET_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.sampled_from([60.0, 3_600.0, 20_000.0, -3_600.0])),  # s
        st.tuples(st.just("reserve"), st.integers(0, 30), st.integers(0, 30)),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 30), st.integers(0, 30)),
        st.tuples(st.just("lose")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("price"), st.sampled_from([0, 1_000_000, 5_000_000])),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(steps=BUDGET_STEPS)
def test_charges_of_requests_that_a_period_admitted_never_exceed_its_budget(steps):
    """In any order of events, with an hour's jumps of the clock. A period is the one in which auth has counted."""
    tokens, money = Budget(DAY, TOKENS, 100), Budget(DAY, MONEY, 150)
    policy = policy_of(tokens, money)
    table, now, number, open_ids, prices = table_of(policy), NOON, 0, [], (PRICE,)
    period_of: dict[str, int] = {}
    charged: dict[str, tuple[int, int]] = {}
    for kind, *values in steps:
        if kind == "wait":
            now += values[0]
        elif kind == "reserve":
            number += 1
            try:
                made = reserve(table, number, *values, now=now)
            except QuotaExceeded:
                continue
            open_ids.append(made.reservation_id)
            period_of[made.reservation_id] = made.holds[0].day_start
        elif kind == "settle" and open_ids:
            reservation_id = open_ids.pop(values[0] % len(open_ids))
            charge = table.settle(reservation_id, values[1], values[2], "stop", now)
            charged[reservation_id] = (charge.prompt_tokens + charge.output_tokens, charge.price_nanos)
        elif kind == "lose":
            table.expire_edge("edge-1", now)
        elif kind == "restart":
            live = list(table._live.values())
            open_ids = [each.reservation_id for each in live]  # the edges of lost ones do not return
            table = restarted(table, live, policy=policy, now=now, prices=prices)
        elif kind == "price":
            prices = (Price("m", values[0], 0, values[0]),)
            table.prices.put(prices[0])
        for start in set(period_of.values()):
            in_period = [charged[each] for each in charged if period_of[each] == start]
            assert sum(each[0] for each in in_period) <= tokens.amount
            assert sum(each[1] for each in in_period) <= money.amount
        for budget in policy.budgets:
            spent, reserved = use_of(table, budget, now)
            assert min(spent, reserved) >= 0
            assert spent + reserved <= budget.amount


# The whole authorizer.


def test_8_edges_spend_a_months_money_of_a_tenant_and_two_keys_through_the_authorizer():
    """10,000 requests that end in any order. Grants for an outage are always within what the budgets leave."""
    draw, now, open_ids = random.Random(8), NOON, []
    settings_of_auth = AuthConfig(pepper="p" * 32, mesh_secret="m" * 32, fallback_share=1.0)
    authorizer = recover(settings_of_auth, StoredState([], {}, [], [], [], [], []), now)
    budget, of_key = Budget(MONTH, MONEY, 4_000_000), Budget(MONTH, MONEY, 2_500_000)
    authorizer.put_price(PRICE)
    quota = authorizer.put_tenant(Tenant(tenant_id="acme", policy=policy_of(budget)), now)
    credentials = []
    for _ in range(2):
        key_id, secret = mint()
        digest = authorizer.keys.digest(secret)
        policy = policy_of(of_key)
        authorizer.put_key(Key(key_id=key_id, tenant_id="acme", digest=digest, created_at=now, policy=policy), now)
        credentials.append(Credential(bearer=secret))
    of_keys = [quota.scope(f"key:{each.key_id}") for each in authorizer.keys.of_tenant("acme")]
    scopes = [(quota.scope(), budget), *((each, of_key) for each in of_keys)]
    for number in range(10_000):
        now += draw.expovariate(10.0)
        frame = Reserve(
            request_id=f"request-{number}",
            credential=draw.choice(credentials),
            model="m",
            prompt_tokens=draw.randrange(500),
            max_output_tokens=draw.randrange(1_000),
        )
        try:
            _, made, _ = authorizer.reserve(frame, f"edge-{number % 8}", f"r-{number}", now)
        except QuotaExceeded:
            continue
        open_ids.append(made.reservation_id)
        granted = authorizer.fallback_grant("acme", 8, now, made.request)
        assert 8 * granted * 2 <= min(left_of(scope, each, now) for scope, each in scopes[:1])
        while len(open_ids) > 64:
            end_one(authorizer, open_ids, draw, now)
        assert all(left_of(scope, each, now) >= 0 for scope, each in scopes)
    while open_ids:
        end_one(authorizer, open_ids, draw, now)
    assert 0 <= left_of(*scopes[0], now) <= 0.01 * budget.amount


def left_of(scope, budget, now) -> int:
    spent, reserved, _ = scope.budget_use(budget, now)
    return budget.amount - spent - reserved


def end_one(authorizer, open_ids, draw, now) -> None:
    reservation_id = open_ids.pop(draw.randrange(len(open_ids)))
    prompt, output = draw.randrange(500), draw.randrange(1_000)
    authorizer.settle(
        Settle(reservation_id=reservation_id, prompt_tokens=prompt, output_tokens=output, outcome="stop"), now
    )
