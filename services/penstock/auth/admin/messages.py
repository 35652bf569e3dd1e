"""Keys and tenants as messages of the Admin service, and back with every fault named."""

from google.protobuf.timestamp_pb2 import Timestamp

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import TENANT_ID_FORMAT, WEIGHT_BOUNDS, Tenant
from penstock.auth.quota.tenant_quota import TenantQuota
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument
from penstock.v1 import admin_pb2 as pb
from penstock.v1.failure_pb2 import FieldViolation
from penstock.v1.inference_pb2 import PRIORITY_STANDARD, Priority

MAX_DISPLAY_NAME_BYTES = 128  # bytes
MAX_KEY_TTL_S = 10 * 365 * 86_400  # s; ten years


def check_display_name(name: str) -> None:
    if len(name.encode()) > MAX_DISPLAY_NAME_BYTES:
        raise InvalidArgument(f"display_name must have at most {MAX_DISPLAY_NAME_BYTES} bytes", field="display_name")


def key_ttl_of(request: pb.CreateKeyRequest) -> float | None:
    """Seconds a new key works; None: until it is revoked. Raises InvalidArgument."""
    if not request.HasField("ttl"):
        return None
    ttl = seconds_of(request.ttl)
    if not 0 < ttl <= MAX_KEY_TTL_S:
        text = f"ttl must be more than 0 s and at most {MAX_KEY_TTL_S} s; leave it out for a key without an end"
        raise InvalidArgument(text, field="ttl")
    return ttl


def tenant_of(message: pb.Tenant) -> Tenant:
    """Raises InvalidArgument that names every field that is wrong."""
    weight = message.weight or 1.0
    low, high = WEIGHT_BOUNDS
    faults = {}
    if not TENANT_ID_FORMAT.fullmatch(message.tenant_id):
        faults["tenant.tenant_id"] = "must be 1 to 63 lower-case letters, digits and hyphens"
    if not low <= weight <= high:
        faults["tenant.weight"] = f"must be {low} to {high:g}, or 0 for 1"
    if message.priority not in Priority.values():
        faults["tenant.priority"] = "must be a class that this release knows"
    if message.tokens_per_minute >= MAX_TOKENS_PER_MINUTE:
        faults["tenant.tokens_per_minute"] = f"must be less than {MAX_TOKENS_PER_MINUTE}, or 0 for no limit"
    if faults:
        violations = [FieldViolation(field=name, description=text) for name, text in faults.items()]
        text = "; ".join(f"{name} {fault}" for name, fault in faults.items())
        raise InvalidArgument(text, field_violations=violations)
    return Tenant(
        tenant_id=message.tenant_id,
        priority=message.priority or PRIORITY_STANDARD,
        weight=weight,
        requests_per_minute=message.requests_per_minute,
        tokens_per_minute=message.tokens_per_minute,
        concurrent_requests=message.concurrent_requests,
    )


MAX_TOKENS_PER_MINUTE = 2**40  # per minute


def tenant_message(quota: TenantQuota) -> pb.Tenant:
    found = quota.tenant
    return pb.Tenant(
        tenant_id=found.tenant_id,
        priority=found.priority,
        weight=found.weight,
        requests_per_minute=found.requests_per_minute,
        tokens_per_minute=found.tokens_per_minute,
        concurrent_requests=found.concurrent_requests,
    )


def usage_message(quota: TenantQuota) -> pb.TenantUse:
    return pb.TenantUse(
        tenant_id=quota.tenant.tenant_id,
        concurrent_requests=quota.concurrent_requests,
        reserved_tokens=quota.reserved_tokens,
        prompt_tokens=quota.prompt_tokens,
        output_tokens=quota.output_tokens,
        requests=quota.requests,
    )


def key_message(found: Key) -> pb.Key:
    return pb.Key(
        key_id=found.key_id,
        tenant_id=found.tenant_id,
        display_name=found.display_name,
        create_time=_timestamp(found.created_at),
        expire_time=None if found.expires_at is None else _timestamp(found.expires_at),
        revoke_time=None if found.revoked_at is None else _timestamp(found.revoked_at),
        loopback_only=found.loopback_only,
    )


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(int(seconds * 1_000_000))
    return stamp
