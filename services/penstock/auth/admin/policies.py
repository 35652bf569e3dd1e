"""Conversion of limits, budgets and prices to messages of the Admin service, and validation of its requests."""

import re
from collections.abc import Iterable, Sequence

from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Limits, Policy
from penstock.auth.quota.prices import DEFAULT_MODEL, Price
from penstock.auth.quota.scope_quota import ScopeQuota
from penstock.chassis.config import check_region
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.limits.bounds import ALLOWED_REGIONS, MODEL_NAME_CHARS
from penstock.v1 import admin_pb2 as pb
from penstock.v1.failure_pb2 import FieldViolation

MAX_TOKENS_PER_MINUTE = 2**40
MAX_BUDGET = 2**60  # tokens or nanos
MAX_PRICE_NANOS = 10**15  # of 1,000,000 tokens
MAX_MODELS = 64  # patterns or limits of one tenant or key
_MODEL_NAME = re.compile(rf"[^*\x00-\x1f]{{1,{MODEL_NAME_CHARS}}}")
_TOKEN_LIMITS = ("input_tokens_per_minute", "output_tokens_per_minute", "tokens_per_minute")
_PERIODS = {pb.BUDGET_PERIOD_DAY: BudgetPeriod.DAY, pb.BUDGET_PERIOD_MONTH: BudgetPeriod.MONTH}
_PERIOD_VALUES = {period: value for value, period in _PERIODS.items()}

Errors = dict[str, str]  # description by field


def raise_errors(errors: Errors) -> None:
    """Raise InvalidArgument, which names every invalid field, if there is one."""
    if errors:
        violations = [FieldViolation(field=name, description=text) for name, text in errors.items()]
        text = "; ".join(f"{name} {error}" for name, error in errors.items())
        raise InvalidArgument(text, field_violations=violations)


def check_token_limits(message: pb.Limits | pb.Tenant, path: str, errors: Errors) -> None:
    for name in _TOKEN_LIMITS:
        if getattr(message, name) >= MAX_TOKENS_PER_MINUTE:
            errors[f"{path}.{name}"] = f"must be less than {MAX_TOKENS_PER_MINUTE}, or 0 for no limit"


def tenant_policy_of(message: pb.Tenant, errors: Errors) -> Policy:
    """Return the policy of a tenant. Invalid fields are added to `errors`."""
    policy = _policy_of(message, "tenant", errors)
    if len(message.model_limits) > MAX_MODELS:
        errors["tenant.model_limits"] = f"must have at most {MAX_MODELS} entries"
    model_limits: dict[str, Limits] = {}
    for place, each in enumerate(message.model_limits):
        path = f"tenant.model_limits[{place}]"
        if not _MODEL_NAME.fullmatch(each.model) or each.model in model_limits:
            errors[f"{path}.model"] = f"must be the name of a model, once, with at most {MODEL_NAME_CHARS} characters"
        model_limits[each.model] = limits_of(each.limits, f"{path}.limits", errors)
    limits = Limits(
        input_tokens_per_minute=message.input_tokens_per_minute,
        output_tokens_per_minute=message.output_tokens_per_minute,
    )
    return Policy(
        limits=limits,
        allowed_models=policy.allowed_models,
        model_limits=tuple(model_limits.items()),
        allowed_regions=_regions_of(message.allowed_regions, errors),
        budgets=policy.budgets,
        soft_share=policy.soft_share,
        shadow=policy.shadow,
    )


def key_policy_of(message: pb.KeyLimits) -> Policy:
    """Return the policy of a key. Raises InvalidArgument, which names every invalid field."""
    errors: Errors = {}
    policy = _policy_of(message, "limits", errors)
    limits = limits_of(message.limits, "limits.limits", errors)
    raise_errors(errors)
    return Policy(
        limits=limits,
        allowed_models=policy.allowed_models,
        budgets=policy.budgets,
        soft_share=policy.soft_share,
        shadow=policy.shadow,
    )


def limits_of(message: pb.Limits, path: str, errors: Errors) -> Limits:
    check_token_limits(message, path, errors)
    return Limits(
        requests_per_minute=message.requests_per_minute,
        input_tokens_per_minute=message.input_tokens_per_minute,
        output_tokens_per_minute=message.output_tokens_per_minute,
        tokens_per_minute=message.tokens_per_minute,
        concurrent_requests=message.concurrent_requests,
    )


def price_of(message: pb.Price) -> Price:
    """Return a price. Raises InvalidArgument, which names every invalid field."""
    errors: Errors = {}
    if message.model != DEFAULT_MODEL and not _MODEL_NAME.fullmatch(message.model):
        errors["price.model"] = f"must be the name of a model with at most {MODEL_NAME_CHARS} characters, or `*`"
    for name in ("input_nanos", "cached_input_nanos", "output_nanos"):
        if getattr(message, name) > MAX_PRICE_NANOS:
            errors[f"price.{name}"] = f"must be at most {MAX_PRICE_NANOS}"
    cached = message.cached_input_nanos if message.HasField("cached_input_nanos") else message.input_nanos
    if cached > message.input_nanos:
        errors.setdefault("price.cached_input_nanos", "must be at most input_nanos")
    raise_errors(errors)
    return Price(message.model, message.input_nanos, cached, message.output_nanos)


def price_message(price: Price) -> pb.Price:
    return pb.Price(**price._asdict())


def limits_message(limits: Limits) -> pb.Limits:
    return pb.Limits(
        requests_per_minute=limits.requests_per_minute,
        input_tokens_per_minute=limits.input_tokens_per_minute,
        output_tokens_per_minute=limits.output_tokens_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
        concurrent_requests=limits.concurrent_requests,
    )


def key_limits_message(policy: Policy) -> pb.KeyLimits:
    return pb.KeyLimits(
        limits=limits_message(policy.limits),
        allowed_models=policy.allowed_models,
        budgets=budget_messages(policy.budgets),
        soft_share=policy.soft_share,
        shadow=policy.shadow,
    )


def budget_messages(budgets: Iterable[Budget]) -> list[pb.Budget]:
    return [_budget_message(each) for each in budgets]


def budget_use_messages(scope: ScopeQuota | None, now: float) -> list[pb.BudgetUse]:
    """Return the use of the budgets of a scope, in their order."""
    found = []
    for budget in scope.policy.budgets if scope else ():
        spent, reserved, end = scope.budget_use(budget, now)  # type: ignore[union-attr]  # no scope has no budgets
        message = pb.BudgetUse(budget=_budget_message(budget), spent=max(0, spent), reserved=max(0, reserved))
        message.end_time.FromSeconds(end)
        found.append(message)
    return found


def _policy_of(message: pb.Tenant | pb.KeyLimits, path: str, errors: Errors) -> Policy:
    """Return the parts of a policy that tenants and keys share."""
    if len(message.allowed_models) > MAX_MODELS:
        errors[f"{path}.allowed_models"] = f"must have at most {MAX_MODELS} entries"
    for place, pattern in enumerate(message.allowed_models):
        if pattern != "*" and not _MODEL_NAME.fullmatch(pattern.removesuffix("*")):
            errors[f"{path}.allowed_models[{place}]"] = (
                "must be the name of a model, or its beginning with `*` at the end"
            )
    if not (message.soft_share == 0 or 0 < message.soft_share < 1):
        errors[f"{path}.soft_share"] = "must be above 0 and below 1, or 0 for no warning"
    return Policy(
        allowed_models=tuple(message.allowed_models),
        budgets=_budgets_of(message.budgets, f"{path}.budgets", errors),
        soft_share=message.soft_share,
        shadow=message.shadow,
    )


def _regions_of(names: Sequence[str], errors: Errors) -> tuple[str, ...]:
    """Return the regions of a tenant, each once. Invalid ones are added to `errors`."""
    if len(names) > ALLOWED_REGIONS:
        errors["tenant.allowed_regions"] = f"must have at most {ALLOWED_REGIONS} entries"
    for place, name in enumerate(names):
        try:
            check_region("", name)
        except ValueError:
            errors[f"tenant.allowed_regions[{place}]"] = "must be the name of a region, as in PENSTOCK_REGION"
    return tuple(dict.fromkeys(names))


def _budgets_of(messages: Iterable[pb.Budget], path: str, errors: Errors) -> tuple[Budget, ...]:
    found: dict[str, Budget] = {}
    for place, each in enumerate(messages):
        amount = each.tokens if each.WhichOneof("amount") == "tokens" else each.money_nanos
        unit = BudgetUnit.TOKENS if each.WhichOneof("amount") == "tokens" else BudgetUnit.MONEY
        if each.period not in _PERIODS:
            errors[f"{path}[{place}].period"] = "must be DAY or MONTH"
            continue
        if not 0 < amount <= MAX_BUDGET:
            name = each.WhichOneof("amount") or "tokens"
            errors[f"{path}[{place}].{name}"] = f"must be above 0 and at most {MAX_BUDGET}"
        budget = Budget(_PERIODS[each.period], unit, amount)
        if budget.name in found:
            errors[f"{path}[{place}]"] = "must be the only one of its period and unit"
        found[budget.name] = budget
    return tuple(found.values())


def _budget_message(budget: Budget) -> pb.Budget:
    amount = {"tokens": budget.amount} if budget.unit is BudgetUnit.TOKENS else {"money_nanos": budget.amount}
    return pb.Budget(period=_PERIOD_VALUES[budget.period], **amount)
