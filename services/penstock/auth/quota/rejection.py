"""Rejection of a request that exceeds limits or budgets: every one of them, and the time to retry."""

from collections.abc import Sequence

from penstock.auth.quota.scope_quota import Exceeded
from penstock.chassis.errors import QuotaExceeded
from penstock.mesh.v1.admission_pb2 import RateLimits
from penstock.v1.failure_pb2 import QuotaViolation

BUDGET_EXCEEDED = "BUDGET_EXCEEDED"


class LimitsExceeded(QuotaExceeded):
    """A request exceeds limits or budgets. `rate_limits` are the tightest limits of its caller; None if it has none."""

    rate_limits: RateLimits | None = None
    limits: tuple[str, ...] = ()  # names of those exceeded


def limits_exceeded(tenant_id: str, exceeded: Sequence[Exceeded], rate_limits: RateLimits | None) -> LimitsExceeded:
    """Return the error with every exceeded limit, and the time after which all of them admit the request."""
    violations = [QuotaViolation(subject=each.subject, description=each.description) for each in exceeded]
    tenant = f"tenant:{tenant_id}"
    limits = "; ".join(
        each.description if each.subject == tenant else f"{each.description} ({each.subject})" for each in exceeded
    )
    known = [each.wait for each in exceeded if each.wait is not None]
    if len(known) < len(exceeded):
        advice = "the request alone exceeds the limit; request fewer tokens or have the limit raised"
        retry_after = None
    else:
        retry_after = max(known)
        advice = f"retry in {retry_after:.3f} s"
    has_budget = any(each.is_budget for each in exceeded)
    error = LimitsExceeded(
        f"tenant {tenant_id} is at its limit of {limits}; {advice}",
        reason=BUDGET_EXCEEDED if has_budget else None,
        retry_after=retry_after,
        quota_violations=violations,
    )
    error.rate_limits, error.limits = rate_limits, tuple(each.name for each in exceeded)
    return error
