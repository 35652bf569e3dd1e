"""Conversion of keys and tenants to messages of the Admin service, and validation of its requests."""

from google.protobuf.timestamp_pb2 import Timestamp

from penstock.auth.identity.keys import Key
from penstock.auth.identity.tenant import TENANT_ID_FORMAT, WEIGHT_BOUNDS, Tenant
from penstock.auth.quota.tenant_quota import TenantQuota
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument
from penstock.v1 import admin_pb2 as pb
from penstock.v1.failure_pb2 import FieldViolation
from penstock.v1.inference_pb2 import PRIORITY_STANDARD, Priority

MAX_DISPLAY_NAME_BYTES = 128
MAX_KEY_TTL_S = 10 * 365 * 86_400  # ten years
MAX_TOKENS_PER_MINUTE = 2**40


def check_display_name(name: str) -> None:
    if len(name.encode()) > MAX_DISPLAY_NAME_BYTES:
        raise InvalidArgument(f"display_name must have at most {MAX_DISPLAY_NAME_BYTES} bytes", field="display_name")


def key_ttl_of(request: pb.CreateKeyRequest) -> float | None:
    """Return the lifetime of a new key in s; None if it does not expire. Raises InvalidArgument."""
    if not request.HasField("ttl"):
        return None
    ttl = seconds_of(request.ttl)
    if not 0 < ttl <= MAX_KEY_TTL_S:
        text = f"ttl must be above 0 s and at most {MAX_KEY_TTL_S} s; omit it for a key that does not expire"
        raise InvalidArgument(text, field="ttl")
    return ttl


def tenant_of(message: pb.Tenant) -> Tenant:
    """Return the tenant of a message. Raises InvalidArgument, which names every invalid field."""
    weight = message.weight or 1.0
    low, high = WEIGHT_BOUNDS
    errors = {}
    if not TENANT_ID_FORMAT.fullmatch(message.tenant_id):
        errors["tenant.tenant_id"] = "must be 1 to 63 lower-case letters, digits and hyphens"
    if not low <= weight <= high:
        errors["tenant.weight"] = f"must be {low} to {high:g}, or 0 for 1"
    if message.priority not in Priority.values():
        errors["tenant.priority"] = "must be a priority class of this release"
    if message.tokens_per_minute >= MAX_TOKENS_PER_MINUTE:
        errors["tenant.tokens_per_minute"] = f"must be less than {MAX_TOKENS_PER_MINUTE}, or 0 for no limit"
    if errors:
        violations = [FieldViolation(field=name, description=text) for name, text in errors.items()]
        text = "; ".join(f"{name} {error}" for name, error in errors.items())
        raise InvalidArgument(text, field_violations=violations)
    return Tenant(
        tenant_id=message.tenant_id,
        priority=message.priority or PRIORITY_STANDARD,
        weight=weight,
        requests_per_minute=message.requests_per_minute,
        tokens_per_minute=message.tokens_per_minute,
        concurrent_requests=message.concurrent_requests,
    )


def tenant_message(quota: TenantQuota) -> pb.Tenant:
    tenant = quota.tenant
    return pb.Tenant(
        tenant_id=tenant.tenant_id,
        priority=tenant.priority,
        weight=tenant.weight,
        requests_per_minute=tenant.requests_per_minute,
        tokens_per_minute=tenant.tokens_per_minute,
        concurrent_requests=tenant.concurrent_requests,
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


def key_message(key: Key) -> pb.Key:
    return pb.Key(
        key_id=key.key_id,
        tenant_id=key.tenant_id,
        display_name=key.display_name,
        create_time=_timestamp(key.created_at),
        expire_time=None if key.expires_at is None else _timestamp(key.expires_at),
        revoke_time=None if key.revoked_at is None else _timestamp(key.revoked_at),
        loopback_only=key.loopback_only,
    )


def _timestamp(seconds: float) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromMicroseconds(int(seconds * 1_000_000))
    return timestamp
