"""`penstock keys`, `tenants`, `drain` and `config`: administration over gRPC."""

import importlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
from google.protobuf.json_format import MessageToDict
from rich.table import Table

from penstock.bench.tables import new_table
from penstock.chassis.config import describe, load, settings
from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import PenstockError, Unimplemented, error_from_rpc
from penstock.cli.limits.texts import key_texts, tenant_texts
from penstock.cli.options import find_tier
from penstock.cli.tables import stdout_console
from penstock.local_mesh.operator_channels import operator_channel
from penstock.v1 import admin_pb2
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import Priority

if TYPE_CHECKING:
    from penstock.v1.admin_pb2_grpc import AdminAsyncStub  # a name that only the type stubs have


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminTarget:
    """An Admin service. Calls carry PENSTOCK_ADMIN_TOKEN if it is set; a unix socket needs none."""

    target: str
    as_json: bool

    @asynccontextmanager
    async def stub(self) -> AsyncIterator["AdminAsyncStub"]:
        """Raises PenstockError if the server rejects a call."""
        async with operator_channel(self.target) as open_channel:
            try:
                yield AdminStub(open_channel)
            except grpc.aio.AioRpcError as error:
                raise admin_error(error, self.target) from error

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        token = os.environ.get("PENSTOCK_ADMIN_TOKEN")
        return (("authorization", f"Bearer {token}"),) if token else ()


def admin_error(rpc: grpc.aio.AioRpcError, target: str) -> PenstockError:
    """Return the error of a failed call; a server without Admin has its own text."""
    error = error_from_rpc(rpc)
    if error.reason == grpc.StatusCode.UNIMPLEMENTED.name:  # gRPC's own answer; ours has a reason
        text = f"{target} does not serve operators; name the admin_listen of the process with --target"
        return Unimplemented(text, reason="NO_ADMIN")
    return error


def auth_target(target: str, *, as_json: bool) -> AdminTarget:
    """Return the Admin service of auth; of the local mesh if `target` is empty."""
    return AdminTarget(target=find_tier("auth", target), as_json=as_json)


async def create_key(
    target: AdminTarget, tenant: str, name: str, ttl: float | None, limits: admin_pb2.KeyLimits
) -> None:
    request = admin_pb2.CreateKeyRequest(tenant_id=tenant, display_name=name, limits=limits)
    if ttl is not None:
        set_seconds(request.ttl, ttl)
    async with target.stub() as admin:
        created = await admin.CreateKey(request, metadata=target.metadata)
    if target.as_json:
        stdout_console.print_json(
            data={"key_id": created.key.key_id, "tenant_id": created.key.tenant_id, "secret": created.secret}
        )
        return
    stdout_console.print(f"{created.secret}\n\nThe key is shown only now; auth stores its HMAC.")


async def list_keys(target: AdminTarget, tenant: str) -> None:
    async with target.stub() as admin:
        response = await admin.ListKeys(admin_pb2.ListKeysRequest(tenant_id=tenant), metadata=target.metadata)
    if target.as_json:
        stdout_console.print_json(data=[MessageToDict(key) for key in response.keys])
        return
    table, uses = new_table("key", "tenant", "name", "created", "state", "limits"), {}
    for use in response.uses:
        uses[use.key_id] = use
    for key in response.keys:
        state = "revoked" if key.HasField("revoke_time") else "loopback only" if key.loopback_only else "works"
        texts = "\n".join(key_texts(key, uses.get(key.key_id))) or "-"
        table.add_row(key.key_id, key.tenant_id, key.display_name, key.create_time.ToJsonString(), state, texts)
    stdout_console.print(table)


async def revoke_key(target: AdminTarget, key_id: str) -> None:
    async with target.stub() as admin:
        response = await admin.RevokeKey(admin_pb2.RevokeKeyRequest(key_id=key_id), metadata=target.metadata)
    if target.as_json:
        stdout_console.print_json(data=MessageToDict(response.key))
        return
    stdout_console.print(f"{response.key.key_id} of {response.key.tenant_id} is revoked")


async def put_tenant(target: AdminTarget, tenant: admin_pb2.Tenant) -> None:
    async with target.stub() as admin:
        stored = await admin.PutTenant(admin_pb2.PutTenantRequest(tenant=tenant), metadata=target.metadata)
    if target.as_json:
        stdout_console.print_json(data=MessageToDict(stored.tenant))
        return
    stdout_console.print(_tenant_table([stored.tenant], [admin_pb2.TenantUse()]))


async def delete_tenant(target: AdminTarget, tenant_id: str) -> None:
    async with target.stub() as admin:
        request = admin_pb2.DeleteTenantRequest(tenant_id=tenant_id)
        response = await admin.DeleteTenant(request, metadata=target.metadata)
    if target.as_json:
        stdout_console.print_json(data={"tenant_id": tenant_id, "deleted_keys": response.deleted_keys})
        return
    stdout_console.print(f"{tenant_id} is deleted with {response.deleted_keys} keys; its usage stays in the ledger")


async def list_tenants(target: AdminTarget) -> None:
    async with target.stub() as admin:
        response = await admin.ListTenants(admin_pb2.ListTenantsRequest(), metadata=target.metadata)
    if target.as_json:
        rows = zip(response.tenants, response.uses, strict=True)
        stdout_console.print_json(data=[{**MessageToDict(tenant), "use": MessageToDict(use)} for tenant, use in rows])
        return
    stdout_console.print(_tenant_table(list(response.tenants), list(response.uses)))


async def drain(target: AdminTarget, grace: float | None) -> None:
    request = admin_pb2.DrainRequest()
    if grace is not None:
        set_seconds(request.grace, grace)
    async with target.stub() as admin:
        response = await admin.Drain(request, metadata=target.metadata)
    stdout_console.print(f"{target.target} is draining; active calls and streams: {response.running}")


async def snapshot(target: AdminTarget) -> None:
    async with target.stub() as admin:
        taken = (await admin.GetSnapshot(admin_pb2.GetSnapshotRequest(), metadata=target.metadata)).snapshot
    if target.as_json:
        stdout_console.print_json(data=MessageToDict(taken))
        return
    table = new_table(f"{taken.tier} {taken.instance_id}", "figure")
    for name in sorted(taken.figures):
        table.add_row(name, f"{taken.figures[name]:,.10g}")
    stdout_console.print(table)


def show_config(tier: str, *, as_json: bool) -> None:
    """Print the configuration that `tier` would start with here; raises ConfigError for unknown or invalid settings."""
    module = importlib.import_module(f"penstock.{tier}.config")
    config = load(getattr(module, f"{tier.capitalize()}Config"), tier)
    if as_json:
        stdout_console.print_json(data=settings(config))
        return
    stdout_console.print(describe(config, tier), markup=False)


def _tenant_table(tenants: list[admin_pb2.Tenant], usages: list[admin_pb2.TenantUse]) -> Table:
    table = new_table(
        "tenant", "class", "weight", "req/min", "tokens/min", "at once", "running", "prompt", "output", "more"
    )
    for tenant, use in zip(tenants, usages, strict=True):
        limits = (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrent_requests)
        table.add_row(
            tenant.tenant_id,
            Priority.Name(tenant.priority).removeprefix("PRIORITY_").lower(),
            f"{tenant.weight:g}",
            *(str(limit) if limit else "-" for limit in limits),
            *(str(used) for used in (use.concurrent_requests, use.prompt_tokens, use.output_tokens)),
            "\n".join(tenant_texts(tenant, use)) or "-",
        )
    return table
