"""Limits, budgets and prices on the command line: options as messages, and messages as texts."""

import pytest
from click.testing import CliRunner

from penstock.cli.__main__ import cli
from penstock.cli.limits.limits import key_limits_message, tenant_message
from penstock.cli.limits.options import BudgetType, ModelLimitType, Money
from penstock.cli.limits.texts import key_texts, money, tenant_texts
from penstock.v1 import admin_pb2 as pb


def test_options_of_a_tenant_become_its_message():
    types = BudgetType(), ModelLimitType()
    tenant = tenant_message(
        tenant_id="acme",
        budgets=[types[0].convert(each, None, None) for each in ("month:money=100.5", "day:tokens=1000000")],
        model_limits=[
            types[1].convert(f"qwen:7b:{each}", None, None) for each in ("tokens_per_minute=5", "concurrent_requests=2")
        ],
        allowed_models=("qwen*",),
        allowed_regions=("eu", "us"),
    )
    assert tenant == pb.Tenant(
        tenant_id="acme",
        budgets=[
            pb.Budget(period=pb.BUDGET_PERIOD_MONTH, money_nanos=100_500_000_000),
            pb.Budget(period=pb.BUDGET_PERIOD_DAY, tokens=1_000_000),
        ],
        model_limits=[pb.ModelLimits(model="qwen:7b", limits=pb.Limits(tokens_per_minute=5, concurrent_requests=2))],
        allowed_models=["qwen*"],
        allowed_regions=["eu", "us"],
    )  # fmt: skip


@pytest.mark.parametrize(("text", "nanos"), [("0", 0), ("0.000000001", 1), ("12.5", 12_500_000_000)])
def test_an_amount_of_money_is_exact(text, nanos):
    assert Money().convert(text, None, None) == nanos


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tenants", "put", "acme", "--budget", "week:money=1"], "must be day or month"),
        (["tenants", "put", "acme", "--budget", "day:money"], "must be day or month"),
        (["tenants", "put", "acme", "--budget", "day:tokens=1.5"], "is not a valid int"),
        (["tenants", "put", "acme", "--budget", "day:money=1e-10"], "at most 9 decimal places"),
        (["tenants", "put", "acme", "--budget", "day:money=nan"], "at most 9 decimal places"),
        (["tenants", "put", "acme", "--model-limit", "m:tokens=1"], "must be MODEL:LIMIT=NUMBER"),
        (["tenants", "put", "acme", "--model-limit", "m:requests_per_minute=-1"], "is not in the range"),
        (["tenants", "put", "acme", "--soft-share", "1"], "is not in the range"),
        (["keys", "limit", "k", "--requests-per-minute", "4294967296"], "is not in the range"),
        (["prices", "put", "m", "--input", "x", "--output", "1"], "'x' is not a number"),
        (["prices", "put", "m", "--input", "1"], "Missing option '--output'"),
    ],
)
def test_an_invalid_option_is_rejected_before_a_call(arguments, message):
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_lists_show_all_limits_and_the_use_of_budgets():
    use = pb.BudgetUse(spent=250_000_000, reserved=10)
    use.end_time.FromSeconds(1_800_057_600)
    tenant = pb.Tenant(
        input_tokens_per_minute=1_000,
        model_limits=[pb.ModelLimits(model="m", limits=pb.Limits(requests_per_minute=60))],
        budgets=[pb.Budget(period=pb.BUDGET_PERIOD_DAY, money_nanos=10**9)],
        soft_share=0.8,
        allowed_models=["m", "qwen*"],
        allowed_regions=["eu", "us"],
        shadow=True,
    )
    assert tenant_texts(tenant, pb.TenantUse(budgets=[use], shadow_refusals={"tenant:acme tokens": 3})) == [
        "1,000 input tokens per minute",
        "m: 60 requests per minute",
        "1 of money per day: 0.25 spent, 0.00000001 reserved until 2027-01-16T00:00:00Z",
        "warns from 80%",
        "models m, qwen*",
        "shadow mode, would have refused: 3 tenant:acme tokens",
        "regions eu, us",
    ]


def test_a_key_shows_its_own_limits():
    limits = dict.fromkeys(("input_tokens_per_minute", "output_tokens_per_minute", "tokens_per_minute"), 0)
    own = key_limits_message(requests_per_minute=9, concurrent_requests=1, budgets=(), **limits)
    assert key_texts(pb.Key(limits=own), None) == ["9 requests per minute, 1 concurrent requests"]
    assert key_texts(pb.Key(), None) == []


def test_money_is_shown_with_the_decimal_places_that_it_has():
    assert [money(each) for each in (0, 1, 10**9, 1_234_500_000_000)] == ["0", "0.000000001", "1", "1,234.5"]


def test_a_share_is_shown_where_limits_are_not_whole():
    tenant, budgets = pb.Tenant(tenant_id="acme"), [pb.Budget(period=pb.BUDGET_PERIOD_DAY, tokens=1)]
    assert tenant_texts(tenant, pb.TenantUse()) == []
    assert tenant_texts(tenant, pb.TenantUse(share_rates=250, share_budgets=50)) == ["share 25 %"]
    tenant.budgets.extend(budgets)
    shared = tenant_texts(tenant, pb.TenantUse(share_rates=250, share_budgets=55))[-1]
    assert shared == "share 25 % of limits, 5.5 % of budgets"
