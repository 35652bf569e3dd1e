"""Tenants of a world and their keys, as auth stores them."""

from collections.abc import Iterator, Sequence

from penstock.auth.identity.keys import Key, KeyRing, key_id_of
from penstock.auth.identity.policy import NO_POLICY, Budget, BudgetPeriod, BudgetUnit, Policy
from penstock.auth.identity.tenant import DEFAULT_TENANT, Tenant
from penstock.auth.store.store import PutKey, PutTenant
from penstock.faults.plan import PlannedTenant
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
        yield PutKey(Key(key_id=key_id, tenant_id=tenant.tenant_id, digest=ring.digest(bearer), created_at=0.0))


def tenant_of(planned: PlannedTenant) -> Tenant:
    return Tenant(
        tenant_id=planned.tenant_id,
        concurrent_requests=planned.concurrent_requests,
        tokens_per_minute=planned.tokens_per_minute,
        policy=_policy(planned),
    )


def _policy(tenant: PlannedTenant) -> Policy:
    amounts = {BudgetPeriod.DAY: tenant.tokens_per_day, BudgetPeriod.MONTH: tenant.tokens_per_month}
    budgets = tuple(Budget(period, BudgetUnit.TOKENS, amount) for period, amount in amounts.items() if amount)
    if not (budgets or tenant.allowed_regions):
        return NO_POLICY
    return Policy(budgets=budgets, allowed_regions=tenant.allowed_regions)
