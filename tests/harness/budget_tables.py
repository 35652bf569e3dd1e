"""Reservation tables of one tenant with budgets."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.prices import Price, PriceList
from penstock.auth.quota.reservation import ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.chassis.errors import QuotaExceeded

DAY, MONTH, TOKENS, MONEY = BudgetPeriod.DAY, BudgetPeriod.MONTH, BudgetUnit.TOKENS, BudgetUnit.MONEY
PRICE = Price("m", 1_000_000, 100_000, 2_000_000)  # 1, 0.1 and 2 nanos per token
NOON = datetime(2028, 2, 28, 12, tzinfo=UTC).timestamp()


def at(*date: int) -> float:
    return datetime(*date, tzinfo=UTC).timestamp()


def policy_of(*budgets: Budget, soft_share=0.0, shadow=False) -> Policy:
    return Policy(budgets=budgets, soft_share=soft_share, shadow=shadow)


def table_of(
    policy: Policy, key: Policy | None = None, *, uses=(), now=NOON, prices=(PRICE,), batch_percent=100
) -> ReservationTable:
    found = ReservationTable(ttl=1e9, prices=PriceList(prices, batch_percent=batch_percent))
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


def restarted(table: ReservationTable, live, lost=(), *, policy, now=NOON, prices=(PRICE,)) -> ReservationTable:
    """Return a table with the state that the store has."""
    after = table_of(policy, uses=[table.quota("acme").scope().use], now=now, prices=prices)
    after.restore(map(as_stored, live), map(as_stored, lost))
    return after


def as_stored(reservation):
    return replace(reservation, metering=reservation.metering._replace(price=None, holds=()))
