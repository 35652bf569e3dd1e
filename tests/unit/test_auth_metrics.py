"""Metrics of auth: refusals by limit, and the used share of the limits of the busiest tenants."""

import pytest

from penstock.auth import series
from penstock.auth.identity.policy import NO_POLICY, Budget, BudgetPeriod, BudgetUnit, Limits, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.metrics import observations, record_admitted, record_refused
from penstock.auth.quota.reservation import ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.chassis.errors import QuotaExceeded, Unauthenticated
from penstock.chassis.observability.metrics import REGISTRY

NOW = 1_800_000_000.0
TENANT = "tenant of test_auth_metrics"


def table_of(policy=NO_POLICY, **limits):
    table = ReservationTable(ttl=1_000.0)
    table.put_tenant(Tenant(tenant_id=TENANT, policy=policy, **limits), NOW)
    return table


def reserve(table, number, output=20):
    names = {"request_id": f"request-{number}", "tenant_id": TENANT, "key_id": "k", "edge_id": "edge-1", "model": "m"}
    request = ReservationRequest(**names, prompt_tokens=10, max_output_tokens=output)
    return table.reserve(request, f"reservation-{number}", NOW)


def value(each, **labels):
    return REGISTRY.get_sample_value(each.prometheus_name, labels) or 0.0


def test_a_refusal_counts_by_reason_and_once_for_each_limit():
    table = table_of(requests_per_minute=1, concurrent_requests=1)
    reserve(table, 1)
    with pytest.raises(QuotaExceeded) as refused:
        reserve(table, 2)
    record_refused(TENANT, refused.value)
    assert value(series.REFUSED, tenant=TENANT, reason="QUOTA_EXCEEDED") == 1
    for limit in ("requests", "concurrent_requests"):
        assert value(series.LIMIT_REFUSALS, tenant=TENANT, limit=limit) == 1


def test_a_refused_credential_of_no_tenant_has_the_empty_label():
    before = value(series.REFUSED, tenant="", reason="KEY_UNKNOWN")
    record_refused("", Unauthenticated("unknown", reason="KEY_UNKNOWN"))
    assert value(series.REFUSED, tenant="", reason="KEY_UNKNOWN") == before + 1


def test_the_used_share_of_each_limit_and_budget_of_a_tenant_is_observed():
    budget = Budget(BudgetPeriod.MONTH, BudgetUnit.TOKENS, 300)
    policy = Policy(limits=Limits(output_tokens_per_minute=40), budgets=(budget,))
    table = table_of(policy, requests_per_minute=4, concurrent_requests=2)
    reserve(table, 1)
    record_admitted(TENANT, 0.002)
    observed = list(observations({"reservations": 1}, table, NOW))
    used = {each.labels[1]: each.value for each in observed if each.series is series.QUOTA_USED}
    expected = {"requests": 0.25, "concurrent_requests": 0.5, "output_tokens": 0.5, "budget_month_tokens": 0.1}
    assert used == pytest.approx(expected)
    assert [each.value for each in observed if each.series is series.RESERVATIONS] == [1]
