"""Tenants of a world and their keys, as auth stores them."""

from collections.abc import Iterator, Sequence

from penstock.auth.identity.keys import Key, KeyRing, key_id_of
from penstock.auth.identity.policy import NO_POLICY, Budget, BudgetPeriod, BudgetUnit, Limits, Policy
from penstock.auth.identity.tenant import DEFAULT_TENANT, Tenant
from penstock.auth.store.store import PutKey, PutTenant
from penstock.faults.checks.oracle import MODEL_NAME
from penstock.faults.plan import LimitScope, PlannedTenant
from penstock.faults.world.tiers import API_KEY, PEPPER

SECRET = "0123456789abcdefghijklmn"  # noqa: S105  # of a simulated mesh


def api_keys(tenants: Sequence[PlannedTenant]) -> list[str]:
    """Return the key of each tenant. That of the default tenant is the development key."""
    return [API_KEY if each.tenant_id == DEFAULT_TENANT else f"pk_{each.tenant_id}_{SECRET}" for each in tenants]


def catalog(tenants: Sequence[PlannedTenant]) -> Iterator[PutTenant | PutKey]:
    """Yield the changes that create the tenants and their keys, except for the default tenant."""
    ring = KeyRing(PEPPER.encode())
    for tenant, bearer in zip(tenants, api_keys(tenants), strict=True):
        if tenant.tenant_id == DEFAULT_TENANT:
            continue
        yield PutTenant(tenant_of(tenant))
        key_id = key_id_of(bearer)
        digest, policy = ring.digest(bearer), key_policy_of(tenant)
        yield PutKey(Key(key_id=key_id, tenant_id=tenant.tenant_id, digest=digest, created_at=0.0, policy=policy))


def tenant_of(planned: PlannedTenant) -> Tenant:
    limits = _limits(planned)
    is_own = planned.scope is LimitScope.TENANT
    return Tenant(
        tenant_id=planned.tenant_id,
        concurrent_requests=limits.concurrent_requests if is_own else 0,
        tokens_per_minute=limits.tokens_per_minute if is_own else 0,
        policy=Policy(
            model_limits=((MODEL_NAME, limits),) if planned.scope is LimitScope.MODEL else (),
            budgets=_budgets(planned) if is_own else (),
            allowed_regions=planned.allowed_regions,
        ),
    )


def key_policy_of(planned: PlannedTenant) -> Policy:
    if planned.scope is not LimitScope.KEY:
        return NO_POLICY
    return Policy(limits=_limits(planned), budgets=_budgets(planned))


def _limits(tenant: PlannedTenant) -> Limits:
    return Limits(tokens_per_minute=tenant.tokens_per_minute, concurrent_requests=tenant.concurrent_requests)


def _budgets(tenant: PlannedTenant) -> tuple[Budget, ...]:
    amounts = {BudgetPeriod.DAY: tenant.tokens_per_day, BudgetPeriod.MONTH: tenant.tokens_per_month}
    return tuple(Budget(period, BudgetUnit.TOKENS, amount) for period, amount in amounts.items() if amount)
