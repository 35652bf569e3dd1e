"""Budgets are never overspent, and nearly all of a budget can be used."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget_tables import DAY, MONEY, MONTH, NOON, PRICE, TOKENS, policy_of, reserve, restarted, table_of, use_of
from penstock.auth.config import AuthConfig
from penstock.auth.identity.keys import Key, mint
from penstock.auth.identity.policy import Budget
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.prices import Price
from penstock.auth.store.recovery import recover
from penstock.auth.store.store import StoredState
from penstock.chassis.errors import QuotaExceeded
from penstock.mesh.v1.admission_pb2 import Credential, Reserve, Settle


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
