"""Limits, budgets and prices of tenants and keys as texts of tables."""

from collections.abc import Iterable

from penstock.cli.limits.options import LIMITS, NANOS
from penstock.v1 import admin_pb2 as pb

_PERIOD_NAMES = {pb.BUDGET_PERIOD_DAY: "day", pb.BUDGET_PERIOD_MONTH: "month"}


def money(nanos: int) -> str:
    """Return an amount in units of the currency, with the decimal places that it has."""
    whole, rest = divmod(nanos, NANOS)
    places = f"{rest:09}".rstrip("0")
    return f"{whole:,}.{places}" if places else f"{whole:,}"


def limits_text(limits: pb.Limits | pb.Tenant, names: Iterable[str] = LIMITS) -> str:
    """Return the limits that are set, such as `60 requests per minute`."""
    found = ((name, getattr(limits, name)) for name in names)
    return ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in found if value)


def budget_text(budget: pb.Budget, use: pb.BudgetUse | None) -> str:
    is_tokens = budget.WhichOneof("amount") == "tokens"
    amount = f"{budget.tokens:,} tokens" if is_tokens else f"{money(budget.money_nanos)} of money"
    text = f"{amount} per {_PERIOD_NAMES.get(budget.period, 'period')}"
    if use is None:
        return text
    shown = (f"{each:,}" if is_tokens else money(each) for each in (use.spent, use.reserved))
    return "{}: {} spent, {} reserved until {}".format(text, *shown, use.end_time.ToJsonString())


def tenant_texts(tenant: pb.Tenant, use: pb.TenantUse) -> list[str]:
    """Return the limits of a tenant that have no column in its table."""
    names = ("input_tokens_per_minute", "output_tokens_per_minute")
    found = [limits_text(tenant, names)]
    found += [f"{each.model}: {limits_text(each.limits)}" for each in tenant.model_limits]
    regions = f"regions {', '.join(tenant.allowed_regions)}" if tenant.allowed_regions else ""
    return [each for each in (*found, *_policy_texts(tenant, use), regions) if each]


def key_texts(key: pb.Key, use: pb.KeyUse | None) -> list[str]:
    return [each for each in (limits_text(key.limits.limits), *_policy_texts(key.limits, use)) if each]


def share_text(rates: int, budgets: int, *, has_budgets: bool) -> str:
    """Return the share of limits that a region enforces, such as `share 25 %`."""
    if has_budgets and budgets != rates:
        return f"share {rates / 10:g} % of limits, {budgets / 10:g} % of budgets"
    return f"share {rates / 10:g} %"


def _policy_texts(policy: pb.Tenant | pb.KeyLimits, use: pb.TenantUse | pb.KeyUse | None) -> list[str]:
    uses = list(use.budgets) if use else []
    found = [budget_text(each, uses[place] if place < len(uses) else None) for place, each in enumerate(policy.budgets)]
    if policy.soft_share and policy.budgets:
        found.append(f"warns from {policy.soft_share:.0%}")
    if policy.allowed_models:
        found.append(f"models {', '.join(policy.allowed_models)}")
    if policy.shadow:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(use.shadow_refusals.items())) if use else ""
        found.append(f"shadow mode{f', would have refused: {counts}' if counts else ''}")
    if use and use.share_rates:
        found.append(share_text(use.share_rates, use.share_budgets, has_budgets=bool(policy.budgets)))
    return found
