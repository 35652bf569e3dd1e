"""One tenant's account: what it holds, what its limits leave, what it was charged."""

from typing import NamedTuple

from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.bucket import MINUTE_US, Bucket, TakeRun, to_micros
from penstock.auth.quota.reservation import Charge, Reservation
from penstock.chassis.errors import QuotaExceeded
from penstock.v1.failure_pb2 import QuotaViolation

DEFAULT_REQUEST_DURATION_S = 1.0  # s; how long a request is guessed to be under way before one has ended
REQUEST_DURATION_GAIN = 0.1  # of the newest request in the moving mean of holds


class Balance(NamedTuple):
    """All that has to be kept of an account over a restart, beside its reservations."""

    tenant_id: str
    requests_full_at: int = 0  # µs
    tokens_full_at: int = 0  # µs
    prompt_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0


class TenantQuota:
    def __init__(self, tenant: Tenant, balance: Balance | None = None, *, now: float) -> None:
        balance = balance or Balance(tenant.tenant_id)
        latest = to_micros(now) + MINUTE_US  # a bucket owes at most a minute, unless the clock was set back since
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
        return f"<Account {self.tenant.tenant_id} {self.concurrent_requests} held, {self.reserved_tokens} tokens>"

    @property
    def balance(self) -> Balance:
        return Balance(
            self.tenant.tenant_id,
            self._requests_bucket.full_at if self._requests_bucket else 0,
            self._tokens_bucket.full_at if self._tokens_bucket else 0,
            self.prompt_tokens,
            self.output_tokens,
            self.requests,
        )

    def set_tenant(self, tenant: Tenant, now: float) -> None:
        """Take new limits; what was spent under the old ones stays spent."""
        self._requests_bucket = _resized_bucket(self._requests_bucket, tenant.requests_per_minute, now)
        self._tokens_bucket = _resized_bucket(self._tokens_bucket, tenant.tokens_per_minute, now)
        self.tenant = tenant

    def check_limits(self, tokens: int, now: float) -> None:
        """Raise QuotaExceeded when one more request of `tokens` would pass a limit."""
        waits: list[tuple[QuotaViolation, float | None]] = []
        for name, bucket, amount in (
            ("requests", self._requests_bucket, 1),
            ("tokens", self._tokens_bucket, tokens),
        ):
            if bucket and (wait := bucket.wait(amount, now)) != 0.0:
                waits.append((self._violation(f"{bucket.per_minute} {name} per minute, {amount} asked"), wait))
        limit = self.tenant.concurrent_requests
        if limit and self.concurrent_requests >= limit:
            waits.append(
                (self._violation(f"{limit} concurrent requests, all under way"), self._mean_request_duration / limit)
            )
        if waits:
            raise _quota_exceeded(self.tenant.tenant_id, waits)

    def tokens_left(self, now: float) -> int | None:
        """How large a request `check` lets through now: 0 when any limit is reached, None when only others are."""
        limit = self.tenant.concurrent_requests
        if limit and self.concurrent_requests >= limit:
            return 0
        if self._requests_bucket and not self._requests_bucket.available(now):
            return 0
        return self._tokens_bucket.available(now) if self._tokens_bucket else None

    def count_reservation(self, tokens: int) -> None:
        """Count a reservation; whether its buckets were charged is the caller's concern."""
        self.concurrent_requests += 1
        self.reserved_tokens += tokens

    def reserve(self, tokens: int, now: float) -> TakeRun | None:
        """Count a request and take it out of the buckets, which owe more than a minute where `check` did not let it."""
        self.count_reservation(tokens)
        if self._requests_bucket:
            self._requests_bucket.spend(1, now)
        return self._tokens_bucket.take(tokens, now) if self._tokens_bucket else None

    def release(self, reservation: Reservation, unused: int) -> None:
        """Give back what a reservation held, and of its tokens those that were not needed."""
        self.concurrent_requests -= 1
        self.reserved_tokens -= reservation.request.tokens
        if self._tokens_bucket and reservation.take_run:
            self._tokens_bucket.settle(reservation.take_run, unused)

    def charge(self, charge: Charge) -> None:
        self.prompt_tokens += charge.prompt_tokens
        self.output_tokens += charge.output_tokens
        if not charge.is_correction:
            self.requests += 1
            held = max(0.0, charge.settled_at - charge.reservation.reserved_at)
            self._mean_request_duration += REQUEST_DURATION_GAIN * (held - self._mean_request_duration)

    def _violation(self, description: str) -> QuotaViolation:
        return QuotaViolation(subject=f"tenant:{self.tenant.tenant_id}", description=description)


def _bucket(per_minute: int, full_at: int) -> Bucket | None:
    return Bucket(per_minute, full_at=full_at) if per_minute else None


def _resized_bucket(bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
    if not bucket or not per_minute:
        return _bucket(per_minute, 0)
    return bucket if bucket.per_minute == per_minute else bucket.with_limit(per_minute, now)


def _quota_exceeded(tenant_id: str, waits: list[tuple[QuotaViolation, float | None]]) -> QuotaExceeded:
    """What the caller hears: every limit hit, and when the slowest of them lets the same request through."""
    violations = [violation for violation, _ in waits]
    limits = "; ".join(each.description for each in violations)
    known = [wait for _, wait in waits if wait is not None]
    if len(known) < len(waits):
        advice, retry_after = "the request alone is larger than the limit; ask for fewer tokens", None
    else:
        advice, retry_after = f"retry in {max(known):.3f} s", max(known)
    text = f"tenant {tenant_id} is at its limit of {limits}; {advice}"
    return QuotaExceeded(text, retry_after=retry_after, quota_violations=violations)
