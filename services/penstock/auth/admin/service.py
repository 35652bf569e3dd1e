"""Admin service of auth: keys, tenants, prices, routes and usage, in addition to the RPCs of every tier."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from penstock.auth.admin import messages, policies, usage
from penstock.auth.admin.routes import RouteChanges
from penstock.auth.authorizer import Authorizer
from penstock.auth.identity.keys import Key, mint
from penstock.auth.identity.policy import Policy
from penstock.auth.models.routes import RouteList
from penstock.auth.quota.tenant_quota import TenantQuota
from penstock.auth.store.responses.store import ResponseStore
from penstock.auth.store.store import (
    Change,
    DeleteKey,
    DeletePrice,
    DeleteTenant,
    PutKey,
    PutPrice,
    PutTenant,
    Store,
    TenantUse,
)
from penstock.auth.usage.query import UsageQuery
from penstock.auth.usage.reader import MAX_QUERY_S, UsageReader
from penstock.chassis.database.errors import StoreUnusable
from penstock.chassis.errors import FailedPrecondition, NotFound, Unavailable
from penstock.chassis.server.admin import AdminService, Figures
from penstock.mesh.partitions import PARTITIONS, partition_of
from penstock.v1 import admin_pb2 as pb


class AuthAdmin(AdminService):
    """Changes keys, tenants, prices and routes. A change takes effect once it is in the store, a revocation at once."""

    def __init__(
        self,
        instance_id: str,
        authorizer: Authorizer,
        store: Store,
        clock: Callable[[], float],
        figures: Figures,
        *,
        usage_reader: UsageReader,
        key_retention: float,
        routes: RouteList,
        responses: ResponseStore,
        home: str = "",
    ) -> None:
        """`key_retention`: s for which a revoked or expired key is kept, so that it is rejected by its state.

        `home`: other region that keeps the tenants of this one; empty: this region keeps them.
        """
        super().__init__("auth", instance_id, figures, self._tables)
        self._authorizer = authorizer
        self._store = store
        self._clock = clock
        self._key_retention = key_retention
        self._usage = usage_reader
        self.on_changed: Callable[[], None] = lambda: None  # called after each change of the catalog
        self._changes = asyncio.Lock()  # so that no key is created for a tenant that is being deleted
        self._home = home
        self._routes = routes
        self._responses = responses
        self._route_changes = RouteChanges(routes, self._persist, self._changing)

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Any) -> pb.CreateKeyResponse:
        ttl = messages.key_ttl_of(request)
        messages.check_display_name(request.display_name)
        policy = policies.key_policy_of(request.limits)
        async with self._changing():
            key, secret = await self._create_key(request, ttl, policy)
        return pb.CreateKeyResponse(key=messages.key_message(key), secret=secret)

    async def _create_key(self, request: pb.CreateKeyRequest, ttl: float | None, policy: Policy) -> tuple[Key, str]:
        if self._authorizer.reservations.quota(request.tenant_id) is None:
            text = f"there is no tenant {request.tenant_id!r}; create it with `penstock tenants put`"
            raise NotFound(text, reason="TENANT_UNKNOWN")
        key_id, secret = mint()
        while key_id in self._authorizer.keys:
            key_id, secret = mint()
        now = self._clock()
        key = Key(
            key_id=key_id,
            tenant_id=request.tenant_id,
            digest=self._authorizer.keys.digest(secret),
            created_at=now,
            display_name=request.display_name,
            expires_at=None if ttl is None else now + ttl,
            policy=policy,
        )
        await self._persist(PutKey(key))
        self._authorizer.put_key(key, now)
        self._delete_ended_keys(request.tenant_id, now)
        return key, secret

    def _delete_ended_keys(self, tenant_id: str, now: float) -> None:
        """Delete the keys that a rotation has left long ago. One that cannot be deleted now is back after a restart."""
        for key in self._authorizer.keys.ended_before(tenant_id, now - self._key_retention):
            self._authorizer.remove_key(key)
            self._store.write(DeleteKey(key.key_id), lambda _: None)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Any) -> pb.ListKeysResponse:
        keys, now = self._authorizer.keys.of_tenant(request.tenant_id), self._clock()
        quotas = [(each, self._authorizer.reservations.quota(each.tenant_id)) for each in keys]
        uses = [  # the use of other replicas' tenants is with them
            messages.key_use_message(key, quota, now)
            for key, quota in quotas
            if quota and self._authorizer.served.has_tenant(key.tenant_id)
        ]
        return pb.ListKeysResponse(
            keys=[messages.key_message(each) for each in keys], uses=[each for each in uses if each]
        )

    async def PutKeyLimits(self, request: pb.PutKeyLimitsRequest, context: Any) -> pb.PutKeyLimitsResponse:
        policy = policies.key_policy_of(request.limits)
        async with self._changing():
            if request.key_id not in self._authorizer.keys:
                raise NotFound(f"there is no key {request.key_id!r}; see `penstock keys list`", reason="KEY_UNKNOWN")
            key = replace(self._authorizer.keys.by_id(request.key_id), policy=policy)
            if key.loopback_only:
                text = "the development key is not in the store; limit its tenant, or create a key"
                raise FailedPrecondition(text, reason="KEY_NOT_STORED")
            await self._persist(PutKey(key))
            key = replace(self._authorizer.keys.by_id(request.key_id), policy=policy)  # it may be revoked meanwhile
            self._authorizer.put_key(key, self._clock())
        return pb.PutKeyLimitsResponse(key=messages.key_message(key))

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Any) -> pb.RevokeKeyResponse:
        keys = self._authorizer.keys
        if request.key_id not in keys or not keys.by_id(request.key_id).loopback_only:
            self._check_home()
        # The revocation takes effect even if the store cannot be written.
        key = keys.revoke(request.key_id, self._clock())
        self.on_changed()
        if not key.loopback_only:  # the development key is not in the store
            await self._persist(PutKey(key))
        return pb.RevokeKeyResponse(key=messages.key_message(key))

    async def PutTenant(self, request: pb.PutTenantRequest, context: Any) -> pb.PutTenantResponse:
        tenant = messages.tenant_of(request.tenant)
        async with self._changing():
            await self._persist(PutTenant(tenant))
            quota = self._authorizer.put_tenant(tenant, self._clock())
        return pb.PutTenantResponse(tenant=messages.tenant_message(quota.tenant))

    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Any) -> pb.DeleteTenantResponse:
        self._check_home()
        if not self._authorizer.served.has_tenant(request.tenant_id):
            owner = self._store.owner_address(partition_of(request.tenant_id)) or "unknown at present"
            text = (
                f"another replica of auth admits tenant {request.tenant_id!r}; send this to its Admin service ({owner})"
            )
            raise FailedPrecondition(text, reason="NOT_OWNER")
        async with self._changing():
            removed = self._authorizer.remove_tenant(request.tenant_id)  # first, so that no request reserves meanwhile
            try:
                await self._responses.delete_of_tenant(request.tenant_id)
                await self._persist(DeleteTenant(request.tenant_id, self._clock()))
            except Unavailable:
                self._authorizer.restore_tenant(removed)
                raise
            self._authorizer.forget_shares(request.tenant_id)
            self._routes.delete_tenant(request.tenant_id)
        return pb.DeleteTenantResponse(deleted_keys=len(removed.keys))

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Any) -> pb.ListTenantsResponse:
        stored = {} if self._is_sole_owner else {each.tenant_id: each for each in await self._read_uses()}
        quotas, now = self._authorizer.reservations.quotas, self._clock()
        return pb.ListTenantsResponse(
            tenants=[messages.tenant_message(each.tenant) for each in quotas],
            uses=[self._use_of(each, stored, now) for each in quotas],
        )

    @property
    def _is_sole_owner(self) -> bool:
        return len(self._authorizer.served) == PARTITIONS

    async def _read_uses(self) -> list[TenantUse]:
        try:
            return await self._store.read_uses()
        except StoreUnusable as error:
            raise Unavailable(str(error), reason="STORE_UNAVAILABLE", retry_after=1.0) from None

    def _use_of(self, quota: TenantQuota, stored: Mapping[str, TenantUse], now: float) -> pb.TenantUse:
        """Return the present use of a tenant: from memory if it is this replica's, else as its owner has stored it."""
        tenant_id = quota.tenant.tenant_id
        found = None if self._authorizer.served.has_tenant(tenant_id) else stored.get(tenant_id)
        return messages.stored_use_message(found, quota, now) if found else messages.usage_message(quota, now)

    async def PutPrice(self, request: pb.PutPriceRequest, context: Any) -> pb.PutPriceResponse:
        price = policies.price_of(request.price)
        async with self._changing():
            await self._persist(PutPrice(price))
            self._authorizer.put_price(price)
        return pb.PutPriceResponse(price=policies.price_message(price))

    async def ListPrices(self, request: pb.ListPricesRequest, context: Any) -> pb.ListPricesResponse:
        prices = self._authorizer.reservations.prices.all
        return pb.ListPricesResponse(prices=[policies.price_message(each) for each in prices])

    async def DeletePrice(self, request: pb.DeletePriceRequest, context: Any) -> pb.DeletePriceResponse:
        async with self._changing():
            if request.model not in self._authorizer.reservations.prices:
                text = f"there is no price of {request.model!r}; see `penstock prices list`"
                raise NotFound(text, reason="PRICE_UNKNOWN")
            await self._persist(DeletePrice(request.model))
            self._authorizer.delete_price(request.model)
        return pb.DeletePriceResponse()

    async def PutRoute(self, request: pb.PutRouteRequest, context: Any) -> pb.PutRouteResponse:
        return await self._route_changes.put(request)

    async def ListRoutes(self, request: pb.ListRoutesRequest, context: Any) -> pb.ListRoutesResponse:
        return self._route_changes.list()

    async def RollBackRoute(self, request: pb.RollBackRouteRequest, context: Any) -> pb.RollBackRouteResponse:
        return await self._route_changes.roll_back(request)

    async def DeleteRoute(self, request: pb.DeleteRouteRequest, context: Any) -> pb.DeleteRouteResponse:
        return await self._route_changes.delete(request)

    async def QueryUsage(
        self, request: pb.QueryUsageRequest, context: Any
    ) -> AsyncGenerator[pb.QueryUsageResponse, None]:
        query = usage.query_of(request, self._clock())
        rows, is_truncated = await self._usage.query(query, _time_left(context))
        for each in usage.usage_responses(query, rows, is_truncated=is_truncated):
            yield each

    async def ExportLedger(
        self, request: pb.ExportLedgerRequest, context: Any
    ) -> AsyncGenerator[pb.ExportLedgerResponse, None]:
        chosen = usage.filter_of(request.filter, self._clock())
        [total], _ = await self._usage.query(UsageQuery(filter=chosen), _time_left(context))
        others = await self._usage.reported_regions(chosen, self._authorizer.region, _time_left(context))
        total_hint = max(0, int(total[0] or 0) - sum(others.values()))
        if others:
            yield pb.ExportLedgerResponse(total_hint=total_hint, other_regions=list(others))
            total_hint = 0
        async with aclosing(self._usage.export(chosen)) as pages:
            async for rows in pages:
                for each in usage.ledger_responses(rows, total_hint):
                    yield each
                total_hint = 0

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Make changes of the catalog one at a time. Raises FailedPrecondition / NOT_HOME."""
        self._check_home()
        async with self._changes:
            try:
                yield
            finally:
                self.on_changed()

    def _check_home(self) -> None:
        if self._home:
            region, home = self._authorizer.region, self._home
            text = f"tenants of region {region} are kept by region {home}; send this to auth of {home}"
            raise FailedPrecondition(text, reason="NOT_HOME", metadata={"home": home})

    async def _persist(self, change: Change) -> None:
        """Write a change and wait for it. Raises Unavailable / STORE_UNAVAILABLE if the store cannot be written."""
        persisted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_persisted(error: Exception | None) -> None:
            if persisted.done():  # the caller has cancelled the RPC
                return
            if error is None:
                persisted.set_result(None)
            else:
                text = "the store of auth cannot be written now; nothing was changed"
                persisted.set_exception(Unavailable(text, reason="STORE_UNAVAILABLE", retry_after=1.0))

        self._store.write(change, on_persisted)
        await persisted

    def _tables(self) -> dict[str, Any]:
        rows = [
            {
                "tenant": each.tenant.tenant_id,
                "concurrent_requests": each.concurrent_requests,
                "reserved_tokens": each.reserved_tokens,
                "prompt_tokens": each.prompt_tokens,
                "output_tokens": each.output_tokens,
                "requests": each.requests,
                "shadow_refusals": each.shadow_refusals.total(),
            }
            for each in self._authorizer.reservations.quotas
        ]
        return {"tenants": rows}


def _time_left(context: Any) -> float:
    """Return the limit of a query in s: its own, or the caller's deadline."""
    left: float | None = context.time_remaining()
    return MAX_QUERY_S if left is None else min(left, MAX_QUERY_S)
