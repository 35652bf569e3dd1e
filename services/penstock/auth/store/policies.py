"""Policies as text of the store: a JSON object of all values that differ from the default."""

from typing import Any

import orjson

from penstock.auth.identity.policy import NO_LIMITS, NO_POLICY, Budget, BudgetPeriod, BudgetUnit, Limits, Policy

_LIMITS = tuple(Limits.__dataclass_fields__)


def policy_text(policy: Policy) -> str:
    """Return the text of a policy; empty for the default one."""
    if policy == NO_POLICY:
        return ""
    found: dict[str, Any] = {
        "limits": _limits_object(policy.limits),
        "allowed_models": policy.allowed_models,
        "allowed_regions": policy.allowed_regions,
        "model_limits": {model: _limits_object(limits) for model, limits in policy.model_limits},
        "budgets": [[each.period, each.unit, each.amount] for each in policy.budgets],
        "soft_share": policy.soft_share,
        "shadow": policy.shadow,
    }
    return orjson.dumps({name: value for name, value in found.items() if value}).decode()


def policy_of(text: str) -> Policy:
    """Return the policy of a text. Values that only a later release knows are ignored."""
    if not text:
        return NO_POLICY
    found = orjson.loads(text)
    return Policy(
        limits=_limits_of(found.get("limits", {})),
        allowed_models=tuple(found.get("allowed_models", ())),
        allowed_regions=tuple(found.get("allowed_regions", ())),
        model_limits=tuple((model, _limits_of(each)) for model, each in found.get("model_limits", {}).items()),
        budgets=tuple(
            Budget(BudgetPeriod(period), BudgetUnit(unit), amount) for period, unit, amount in found.get("budgets", ())
        ),
        soft_share=found.get("soft_share", 0.0),
        shadow=found.get("shadow", False),
    )


def _limits_object(limits: Limits) -> dict[str, int]:
    return {name: value for name in _LIMITS if (value := getattr(limits, name))}


def _limits_of(found: dict[str, int]) -> Limits:
    return Limits(**{name: found[name] for name in _LIMITS if name in found}) if found else NO_LIMITS
