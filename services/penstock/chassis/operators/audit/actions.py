"""The actions of the Admin service that the audit log records, with their parameters; never a secret."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import PenstockError
from penstock.chassis.operators.audit.log import AuditLog
from penstock.chassis.server.interceptors import Context, Continuation
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import Priority

ADMIN_PREFIX = "/penstock.v1.Admin/"

Parameters = Mapping[str, Any]

_TENANT_COLUMNS = frozenset(
    {"tenant_id", "priority", "weight", "requests_per_minute", "tokens_per_minute", "concurrent_requests"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedAction:
    """How a method is recorded."""

    name: str
    parameters: Callable[[Any], Parameters]  # of the request
    outcome: Callable[[Any], Parameters]  # of the response
    # Whether the action is refused if it cannot be recorded. A revocation or a drain only takes away, and must work on
    # a full disk, too.
    is_required: bool = True


def _tenant(request: pb.PutTenantRequest) -> Parameters:
    tenant = request.tenant
    return {
        "tenant_id": tenant.tenant_id,
        "priority": Priority.Name(tenant.priority) if tenant.priority in Priority.values() else tenant.priority,
        "weight": tenant.weight,
        "requests_per_minute": tenant.requests_per_minute,
        "tokens_per_minute": tenant.tokens_per_minute,
        "concurrent_requests": tenant.concurrent_requests,
        **_fields_of(tenant, except_for=_TENANT_COLUMNS),
    }


def _key(request: pb.CreateKeyRequest) -> Parameters:
    ttl = {"ttl": seconds_of(request.ttl)} if request.HasField("ttl") else {}
    limits = {"limits": _fields_of(request.limits)} if request.HasField("limits") else {}
    return {"tenant_id": request.tenant_id, "display_name": request.display_name, **ttl, **limits}


def _fields_of(message: Message, *, except_for: frozenset[str] = frozenset()) -> Parameters:
    """Return the fields of a message that are set."""
    found = MessageToDict(message, preserving_proto_field_name=True)
    return {name: value for name, value in found.items() if name not in except_for}


def _region_outcome(response: Any) -> Parameters:
    return {"share_percent": response.region.share_percent, "open_calls": response.region.open_calls}


AUDITED_ACTIONS: Mapping[str, AuditedAction] = {
    "CreateKey": AuditedAction(
        name="keys.create", parameters=_key, outcome=lambda response: {"key_id": response.key.key_id}
    ),
    "RevokeKey": AuditedAction(
        name="keys.revoke",
        parameters=lambda request: {"key_id": request.key_id},
        outcome=lambda response: {"tenant_id": response.key.tenant_id},
        is_required=False,
    ),
    "PutKeyLimits": AuditedAction(
        name="keys.limit",
        parameters=lambda request: {"key_id": request.key_id, "limits": _fields_of(request.limits)},
        outcome=lambda response: {"tenant_id": response.key.tenant_id},
    ),
    "PutPrice": AuditedAction(
        name="prices.put", parameters=lambda request: _fields_of(request.price), outcome=lambda _: {}
    ),
    "DeletePrice": AuditedAction(
        name="prices.delete", parameters=lambda request: {"model": request.model}, outcome=lambda _: {}
    ),
    "PutRoute": AuditedAction(
        name="routes.put",
        parameters=lambda request: _fields_of(request.route, except_for=frozenset({"former"})),
        outcome=lambda response: {"revision": response.route.revision},
    ),
    "RollBackRoute": AuditedAction(
        name="routes.roll_back",
        parameters=_fields_of,
        outcome=lambda response: {
            "revision": response.route.revision,
            "definition": _fields_of(response.route.definition),
        },
    ),
    "DeleteRoute": AuditedAction(name="routes.delete", parameters=_fields_of, outcome=lambda _: {}),
    "PutTenant": AuditedAction(name="tenants.put", parameters=_tenant, outcome=lambda _: {}),
    "DeleteTenant": AuditedAction(
        name="tenants.delete",
        parameters=lambda request: {"tenant_id": request.tenant_id},
        outcome=lambda response: {"deleted_keys": response.deleted_keys},
    ),
    "DrainRegion": AuditedAction(
        name="regions.drain", parameters=_fields_of, outcome=_region_outcome, is_required=False
    ),
    "RestoreRegion": AuditedAction(name="regions.restore", parameters=_fields_of, outcome=_region_outcome),
    "PutRegionWeight": AuditedAction(name="regions.weight", parameters=_fields_of, outcome=_region_outcome),
    "Drain": AuditedAction(
        name="process.drain",
        parameters=lambda request: {"grace": seconds_of(request.grace)} if request.HasField("grace") else {},
        outcome=lambda response: {"running": response.running},
        is_required=False,
    ),
}
UNRECORDED_METHODS = frozenset(  # they change nothing
    {
        *("ListKeys", "ListTenants", "ListPrices", "ListRoutes", "ListRegions"),
        *("QueryUsage", "ExportLedger", "GetSnapshot", "WatchSnapshot", "Explain"),
    }
)


@dataclass
class AuditInterceptor(grpc.aio.ServerInterceptor):
    """Records the start and the end of each audited action. The innermost interceptor of the operators' listener."""

    audit: AuditLog
    running: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        action = AUDITED_ACTIONS.get(handler_call_details.method.removeprefix(ADMIN_PREFIX))
        if handler is None or action is None or not handler_call_details.method.startswith(ADMIN_PREFIX):
            return handler

        async def call(request: Any, context: Context) -> Any:
            self.running += 1
            self.idle.clear()
            try:
                return await self._run(action, handler.unary_unary, request, context)
            finally:
                self.running -= 1
                if not self.running:
                    self.idle.set()

        return grpc.unary_unary_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)

    async def _run(
        self, action: AuditedAction, method: Callable[[Any, Context], Awaitable[Any]], request: Any, context: Context
    ) -> Any:
        entry = self.audit.entry(action.name, action.parameters(request), peer=context.peer())
        begun = await self.audit.begin(entry, is_required=action.is_required)
        result = "CANCELLED"
        outcome: Parameters = {}
        try:
            response = await method(request, context)
            result, outcome = "OK", action.outcome(response)
        except PenstockError as error:
            result = f"{error.code.name}/{error.reason}"
            raise
        except Exception as error:
            result = f"INTERNAL/{type(error).__name__}"
            raise
        finally:
            ending = self.audit.end(entry, begun, result, outcome)
        await self.audit.wait_written(ending)
        return response
