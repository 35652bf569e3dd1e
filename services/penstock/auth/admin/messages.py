"""Conversion of keys and tenants to messages of the Admin service, and validation of its requests."""

from google.protobuf.timestamp_pb2 import Timestamp

from penstock.auth.admin import policies
from penstock.auth.identity.keys import Key
from penstock.auth.identity.policy import NO_POLICY
from penstock.auth.identity.tenant import TENANT_ID_FORMAT, WEIGHT_BOUNDS, Tenant
from penstock.auth.quota.scope_quota import KEY_SCOPE, ScopeQuota
from penstock.auth.quota.shared_quota import SharedTenantQuota
from penstock.auth.quota.tenant_quota import TenantQuota
from penstock.auth.store.store import TenantUse
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import PRIORITY_STANDARD, Priority

MAX_DISPLAY_NAME_BYTES = 128
MAX_KEY_TTL_S = 10 * 365 * 86_400  # ten years


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
    errors: policies.Errors = {}
    if not TENANT_ID_FORMAT.fullmatch(message.tenant_id):
        errors["tenant.tenant_id"] = "must be 1 to 63 lower-case letters, digits and hyphens"
    if not low <= weight <= high:
        errors["tenant.weight"] = f"must be {low} to {high:g}, or 0 for 1"
    if message.priority not in Priority.values():
        errors["tenant.priority"] = "must be a priority class of this release"
    policies.check_token_limits(message, "tenant", errors)
    policy = policies.tenant_policy_of(message, errors)
    policies.raise_errors(errors)
    return Tenant(
        tenant_id=message.tenant_id,
        priority=message.priority or PRIORITY_STANDARD,
        weight=weight,
        requests_per_minute=message.requests_per_minute,
        tokens_per_minute=message.tokens_per_minute,
        concurrent_requests=message.concurrent_requests,
        policy=policy,
    )


def tenant_message(tenant: Tenant) -> pb.Tenant:
    policy = tenant.policy
    return pb.Tenant(
        tenant_id=tenant.tenant_id,
        priority=tenant.priority,
        weight=tenant.weight,
        requests_per_minute=tenant.requests_per_minute,
        tokens_per_minute=tenant.tokens_per_minute,
        concurrent_requests=tenant.concurrent_requests,
        input_tokens_per_minute=policy.limits.input_tokens_per_minute,
        output_tokens_per_minute=policy.limits.output_tokens_per_minute,
        allowed_models=policy.allowed_models,
        allowed_regions=policy.allowed_regions,
        model_limits=[
            pb.ModelLimits(model=model, limits=policies.limits_message(limits)) for model, limits in policy.model_limits
        ],
        budgets=policies.budget_messages(policy.budgets),
        soft_share=policy.soft_share,
        shadow=policy.shadow,
    )


def usage_message(quota: TenantQuota, now: float) -> pb.TenantUse:
    return pb.TenantUse(
        tenant_id=quota.tenant.tenant_id,
        concurrent_requests=quota.concurrent_requests,
        reserved_tokens=quota.reserved_tokens,
        prompt_tokens=quota.prompt_tokens,
        output_tokens=quota.output_tokens,
        requests=quota.requests,
        budgets=policies.budget_use_messages(quota.scope(), now),
        shadow_refusals=quota.shadow_refusals,
        **_share_fields(quota, ""),
    )


def stored_use_message(use: TenantUse, quota: TenantQuota, now: float) -> pb.TenantUse:
    """Return the use of a tenant as its owner has stored it: what is reserved of a budget is among the spent amount."""
    values = use._asdict()
    stored = values.pop("scope_use")
    scope = ScopeQuota(stored, "", quota.tenant.policy, now) if stored else quota.scope()
    return pb.TenantUse(**values, budgets=policies.budget_use_messages(scope, now))


def key_use_message(key: Key, quota: TenantQuota, now: float) -> pb.KeyUse | None:
    """Return the use of a key; None if it has neither limits nor budgets."""
    scope = quota.scope(f"{KEY_SCOPE}{key.key_id}")
    if scope is None:
        return None
    subject = f"{scope.subject} "
    return pb.KeyUse(
        key_id=key.key_id,
        concurrent_requests=scope.concurrent_requests,
        budgets=policies.budget_use_messages(scope, now),
        shadow_refusals={
            limit.removeprefix(subject): count
            for limit, count in quota.shadow_refusals.items()
            if limit.startswith(subject)
        },
        **_share_fields(quota, scope.name),
    )


def _share_fields(quota: TenantQuota, scope: str) -> dict[str, int]:
    """Return the share of a scope that this region enforces; nothing where limits are whole."""
    if not isinstance(quota, SharedTenantQuota):
        return {}
    share = quota.share_of(scope)
    return {"share_rates": share.rates, "share_budgets": share.budgets}


def key_message(key: Key) -> pb.Key:
    return pb.Key(
        key_id=key.key_id,
        tenant_id=key.tenant_id,
        display_name=key.display_name,
        create_time=_timestamp(key.created_at),
        expire_time=None if key.expires_at is None else _timestamp(key.expires_at),
        revoke_time=None if key.revoked_at is None else _timestamp(key.revoked_at),
        loopback_only=key.loopback_only,
        limits=policies.key_limits_message(key.policy) if key.policy != NO_POLICY else None,
    )


def _timestamp(seconds: float) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromMicroseconds(int(seconds * 1_000_000))
    return timestamp
