"""Admin service of auth: keys, tenants and usage, in addition to the RPCs of every tier."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from penstock.auth.admin import messages, usage
from penstock.auth.authorizer import Authorizer
from penstock.auth.identity.keys import Key, mint
from penstock.auth.store.store import Change, DeleteKey, DeleteTenant, PutKey, PutTenant, Store
from penstock.auth.usage.query import UsageQuery
from penstock.auth.usage.reader import MAX_QUERY_S, UsageReader
from penstock.chassis.errors import NotFound, Unavailable
from penstock.chassis.server.admin import AdminService, Figures
from penstock.v1 import admin_pb2 as pb


class AuthAdmin(AdminService):
    """Changes keys and tenants. A change takes effect once it is in the store; a revocation takes effect at once."""

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
    ) -> None:
        """`key_retention`: s for which a revoked or expired key is kept, so that it is rejected by its state."""
        super().__init__("auth", instance_id, figures, self._tables)
        self._authorizer = authorizer
        self._store = store
        self._clock = clock
        self._key_retention = key_retention
        self._usage = usage_reader
        self._changes = asyncio.Lock()  # so that no key is created for a tenant that is being deleted

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Any) -> pb.CreateKeyResponse:
        ttl = messages.key_ttl_of(request)
        messages.check_display_name(request.display_name)
        async with self._changes:
            key, secret = await self._create_key(request, ttl)
        return pb.CreateKeyResponse(key=messages.key_message(key), secret=secret)

    async def _create_key(self, request: pb.CreateKeyRequest, ttl: float | None) -> tuple[Key, str]:
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
        )
        await self._persist(PutKey(key))
        self._authorizer.keys.put(key)
        self._delete_ended_keys(request.tenant_id, now)
        return key, secret

    def _delete_ended_keys(self, tenant_id: str, now: float) -> None:
        """Delete the keys that a rotation has left long ago. One that cannot be deleted now is back after a restart."""
        for key in self._authorizer.keys.ended_before(tenant_id, now - self._key_retention):
            self._authorizer.keys.remove(key.key_id)
            self._store.write(DeleteKey(key.key_id), lambda _: None)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Any) -> pb.ListKeysResponse:
        return pb.ListKeysResponse(
            keys=[messages.key_message(each) for each in self._authorizer.keys.of_tenant(request.tenant_id)]
        )

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Any) -> pb.RevokeKeyResponse:
        # The revocation takes effect even if the store cannot be written.
        key = self._authorizer.keys.revoke(request.key_id, self._clock())
        if not key.loopback_only:  # the development key is not in the store
            await self._persist(PutKey(key))
        return pb.RevokeKeyResponse(key=messages.key_message(key))

    async def PutTenant(self, request: pb.PutTenantRequest, context: Any) -> pb.PutTenantResponse:
        tenant = messages.tenant_of(request.tenant)
        async with self._changes:
            await self._persist(PutTenant(tenant))
            quota = self._authorizer.reservations.put_tenant(tenant, self._clock())
        return pb.PutTenantResponse(tenant=messages.tenant_message(quota))

    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Any) -> pb.DeleteTenantResponse:
        async with self._changes:
            removed = self._authorizer.remove_tenant(request.tenant_id)  # first, so that no request reserves meanwhile
            try:
                await self._persist(DeleteTenant(request.tenant_id, self._clock()))
            except Unavailable:
                self._authorizer.restore_tenant(removed)
                raise
        return pb.DeleteTenantResponse(deleted_keys=len(removed.keys))

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Any) -> pb.ListTenantsResponse:
        quotas = self._authorizer.reservations.quotas
        return pb.ListTenantsResponse(
            tenants=[messages.tenant_message(each) for each in quotas],
            uses=[messages.usage_message(each) for each in quotas],
        )

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
        total_hint = int(total[0] or 0)
        async with aclosing(self._usage.export(chosen)) as pages:
            async for rows in pages:
                for each in usage.ledger_responses(rows, total_hint):
                    yield each
                total_hint = 0

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
            }
            for each in self._authorizer.reservations.quotas
        ]
        return {"tenants": rows}


def _time_left(context: Any) -> float:
    """Return the limit of a query in s: its own, or the caller's deadline."""
    left: float | None = context.time_remaining()
    return MAX_QUERY_S if left is None else min(left, MAX_QUERY_S)
