"""Charges of several tenants, keys and models, for tests of usage."""

import asyncio
from dataclasses import replace

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.tenant_quota import Balance
from penstock.auth.store.opening import opened_store
from penstock.auth.store.store import PutTenant
from store_changes import charged, kept

START = 1_798_761_600  # 2027-01-01 UTC
HOUR_S = 3_600


def charge(number, at, *, tenant="acme", key="k", region="", outcome="stop", reserved_at=None, **more):
    change = charged(number, outcome=outcome, output=number)
    own = replace(change.charge.reservation.request, tenant_id=tenant, key_id=key, **more)
    reserved = replace(
        change.charge.reservation, request=own, reservation_id=f"r-{number:06}", reserved_at=reserved_at or at - 1.0
    )
    spent = {"settled_at": at, "region": region, "cached_tokens": 4, "price_nanos": 5, "worker": "w"}
    return change._replace(charge=replace(change.charge, reservation=reserved, **spent), balance=Balance(tenant))


async def fill(stored, *charges):
    async with opened_store(stored.location) as (store, _):
        for tenant_id in {each.charge.reservation.request.tenant_id for each in charges}:
            await kept(store, PutTenant(Tenant(tenant_id=tenant_id)))
        await asyncio.gather(*(kept(store, each) for each in charges))
