"""Tenant quota: the reserved tokens, remaining limits and charges of one tenant."""

from typing import NamedTuple

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.bucket import MINUTE_US, Bucket, TakeRun, to_micros
from penstock.auth.quota.reservation import Charge, Reservation
from penstock.chassis.errors import QuotaExceeded
from penstock.v1.failure_pb2 import QuotaViolation

DEFAULT_REQUEST_DURATION_S = 1.0  # s; assumed until the first request has ended
REQUEST_DURATION_GAIN = 0.1  # weight of the latest request in the moving mean of durations

MAX_STORED = 2**63 - 1  # largest integer of SQLite


class Balance(NamedTuple):
    """State of a quota that survives a restart, in addition to its reservations."""

    tenant_id: str
    requests_full_at: int = 0  # µs
    tokens_full_at: int = 0  # µs
    prompt_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0


class TenantQuota:
    """Limits and use of one tenant."""

    def __init__(self, tenant: Tenant, balance: Balance | None = None, *, now: float) -> None:
        balance = balance or Balance(tenant.tenant_id)
        latest = to_micros(now) + MINUTE_US  # later times mean that the clock was set back
        self.tenant = tenant
        self.concurrent_requests = 0
        self.reserved_tokens = 0
        self.prompt_tokens = balance.prompt_tokens
        self.output_tokens = balance.output_tokens
        self.requests = balance.requests
        self._requests_bucket = _bucket(tenant.requests_per_minute, min(balance.requests_full_at, latest))
        self._tokens_bucket = _bucket(tenant.tokens_per_minute, min(balance.tokens_full_at, latest))
        self._mean_request_duration = DEFAULT_REQUEST_DURATION_S

    def __repr__(self) -> str:
        return f"<TenantQuota {self.tenant.tenant_id} {self.concurrent_requests} held, {self.reserved_tokens} tokens>"

    @property
    def balance(self) -> Balance:
        return Balance(
            self.tenant.tenant_id,
            _stored_full_at(self._requests_bucket),
            _stored_full_at(self._tokens_bucket),
            self.prompt_tokens,
            self.output_tokens,
            self.requests,
        )

    def set_tenant(self, tenant: Tenant, now: float) -> None:
        """Set new limits. Tokens spent under the former limits stay spent."""
        self._requests_bucket = _resized_bucket(self._requests_bucket, tenant.requests_per_minute, now)
        self._tokens_bucket = _resized_bucket(self._tokens_bucket, tenant.tokens_per_minute, now)
        self.tenant = tenant

    def check_limits(self, tokens: int, now: float) -> None:
        """Raise QuotaExceeded if one more request of `tokens` tokens would exceed a limit."""
        waits: list[tuple[QuotaViolation, float | None]] = []
        for name, bucket, amount in (
            ("requests", self._requests_bucket, 1),
            ("tokens", self._tokens_bucket, tokens),
        ):
            if bucket and (wait := bucket.wait(amount, now)) != 0.0:
                waits.append((self._violation(f"{bucket.per_minute} {name} per minute, {amount} requested"), wait))
        limit = self.tenant.concurrent_requests
        if limit and self.concurrent_requests >= limit:
            waits.append(
                (self._violation(f"{limit} concurrent requests, all in progress"), self._mean_request_duration / limit)
            )
        if waits:
            raise _quota_exceeded(self.tenant.tenant_id, waits)

    def tokens_left(self, now: float) -> int | None:
        """Return the tokens of the largest request within the limits; None if there is no token limit."""
        limit = self.tenant.concurrent_requests
        if limit and self.concurrent_requests >= limit:
            return 0
        if self._requests_bucket and not self._requests_bucket.available(now):
            return 0
        return self._tokens_bucket.available(now) if self._tokens_bucket else None

    def count_reservation(self, tokens: int) -> None:
        """Count a reservation without taking it from the buckets."""
        self.concurrent_requests += 1
        self.reserved_tokens += tokens

    def reserve(self, tokens: int, now: float) -> TakeRun | None:
        """Count a reservation and take it from the buckets, also beyond the limits if these were not checked."""
        self.count_reservation(tokens)
        if self._requests_bucket:
            self._requests_bucket.spend(1, now)
        return self._tokens_bucket.take(tokens, now) if self._tokens_bucket else None

    def release(self, reservation: Reservation, unused: int) -> None:
        """Remove a reservation, and give `unused` tokens back to the bucket."""
        self.concurrent_requests -= 1
        self.reserved_tokens -= reservation.request.tokens
        if self._tokens_bucket and reservation.take_run:
            self._tokens_bucket.settle(reservation.take_run, unused)

    def charge(self, charge: Charge) -> None:
        self.prompt_tokens += charge.prompt_tokens
        self.output_tokens += charge.output_tokens
        if not charge.is_correction:
            self.requests += 1
            duration = max(0.0, charge.settled_at - charge.reservation.reserved_at)
            self._mean_request_duration += REQUEST_DURATION_GAIN * (duration - self._mean_request_duration)

    def _violation(self, description: str) -> QuotaViolation:
        return QuotaViolation(subject=f"tenant:{self.tenant.tenant_id}", description=description)


def _bucket(per_minute: int, full_at: int) -> Bucket | None:
    return Bucket(per_minute, full_at=full_at) if per_minute else None


def _stored_full_at(bucket: Bucket | None) -> int:
    """Return a time that fits into the store. Fallback admissions far beyond a small limit end later than that."""
    return min(bucket.full_at, MAX_STORED) if bucket else 0


def _resized_bucket(bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
    if not bucket or not per_minute:
        return _bucket(per_minute, 0)
    return bucket if bucket.per_minute == per_minute else bucket.with_limit(per_minute, now)


def _quota_exceeded(tenant_id: str, waits: list[tuple[QuotaViolation, float | None]]) -> QuotaExceeded:
    """Return the error with every exceeded limit, and the time after which all of them admit the request."""
    violations = [violation for violation, _ in waits]
    limits = "; ".join(each.description for each in violations)
    known = [wait for _, wait in waits if wait is not None]
    if len(known) < len(waits):
        advice, retry_after = "the request alone exceeds the limit; request fewer tokens", None
    else:
        advice, retry_after = f"retry in {max(known):.3f} s", max(known)
    text = f"tenant {tenant_id} is at its limit of {limits}; {advice}"
    return QuotaExceeded(text, retry_after=retry_after, quota_violations=violations)
