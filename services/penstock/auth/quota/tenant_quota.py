"""Tenant quota: the reserved tokens, remaining limits and charges of one tenant, its keys and its models."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.auth.identity.policy import NO_POLICY, BudgetUnit, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.bucket import MINUTE_US, Bucket, TakeRun, to_micros
from penstock.auth.quota.rates import RateState, new_bucket, rate_state, resized_bucket, stored_full_at
from penstock.auth.quota.rejection import limits_exceeded
from penstock.auth.quota.reservation import Charge, Reservation, ReservationRequest
from penstock.auth.quota.scope_quota import KEY_SCOPE, MODEL_SCOPE, Exceeded, Hold, ScopeQuota, ScopeUse
from penstock.mesh.v1.admission_pb2 import RateLimits

DEFAULT_REQUEST_DURATION_S = 1.0  # s; assumed until the first request has ended
REQUEST_DURATION_GAIN = 0.1  # weight of the latest request in the moving mean of durations


class Balance(NamedTuple):
    """State of a quota that survives a restart, in addition to its reservations and its scopes."""

    tenant_id: str
    requests_full_at: int = 0  # µs
    tokens_full_at: int = 0  # µs
    prompt_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0


class TenantQuota:
    """Limits and use of one tenant.

    Requests and tokens per minute and concurrent requests of the tenant are checked here. Its other limits, its budgets
    and those of its keys and models are scopes, so that a tenant without them pays for none.
    """

    def __init__(
        self, tenant: Tenant, balance: Balance | None = None, *, uses: Iterable[ScopeUse] = (), now: float
    ) -> None:
        balance = balance or Balance(tenant.tenant_id)
        latest = to_micros(now) + MINUTE_US  # later times mean that the clock was set back
        self.tenant = tenant
        self.concurrent_requests = 0
        self.reserved_tokens = 0
        self.prompt_tokens = balance.prompt_tokens
        self.output_tokens = balance.output_tokens
        self.requests = balance.requests
        self.shadow_refusals: Counter[str] = Counter()  # of this process, by subject and limit
        self._requests_bucket = self._new_bucket(tenant.requests_per_minute, min(balance.requests_full_at, latest))
        self._tokens_bucket = self._new_bucket(tenant.tokens_per_minute, min(balance.tokens_full_at, latest))
        self._concurrent_limit = tenant.concurrent_requests
        self._mean_request_duration = DEFAULT_REQUEST_DURATION_S
        self.is_metered = False  # whether a scope has limits, or the tenant is in shadow mode
        self._money_scopes: set[str] = set()  # with a budget in money
        self._scopes: dict[str, ScopeQuota] = {}
        self._idle_scopes: dict[str, ScopeQuota] = {}  # without limits at present; their requests still end there
        self._stored_uses = {each.scope: each for each in uses}  # of scopes that have not been set yet
        self._set_scopes(tenant, now)

    def __repr__(self) -> str:
        return f"<TenantQuota {self.tenant.tenant_id} {self.concurrent_requests} held, {self.reserved_tokens} tokens>"

    @property
    def balance(self) -> Balance:
        return Balance(
            self.tenant.tenant_id,
            stored_full_at(self._requests_bucket),
            stored_full_at(self._tokens_bucket),
            self.prompt_tokens,
            self.output_tokens,
            self.requests,
        )

    @property
    def has_money_budget(self) -> bool:
        """Whether the tenant or one of its keys has a budget in money."""
        return bool(self._money_scopes)

    # Changes of the operator.

    def set_tenant(self, tenant: Tenant, now: float) -> None:
        """Set new limits. Tokens spent under the former limits stay spent."""
        self._requests_bucket = self._resized_bucket(self._requests_bucket, tenant.requests_per_minute, now)
        self._tokens_bucket = self._resized_bucket(self._tokens_bucket, tenant.tokens_per_minute, now)
        self._concurrent_limit = tenant.concurrent_requests
        self.tenant = tenant
        self._set_scopes(tenant, now)

    def set_key(self, key_id: str, policy: Policy, now: float) -> None:
        """Set the limits and budgets of a key of the tenant."""
        self._set_scope(f"{KEY_SCOPE}{key_id}", f"key:{key_id}", policy, now)

    def remove_key(self, key_id: str) -> None:
        """Forget a deleted key with its use."""
        name = f"{KEY_SCOPE}{key_id}"
        self._money_scopes.discard(name)
        for each in (self._scopes, self._idle_scopes, self._stored_uses):
            each.pop(name, None)

    def _set_scopes(self, tenant: Tenant, now: float) -> None:
        policy, subject = tenant.policy, f"tenant:{tenant.tenant_id}"
        self._set_scope("", subject, policy, now)
        wanted = {f"{MODEL_SCOPE}{model}": limits for model, limits in policy.model_limits}
        for scope in [each for each in self._scopes if each.startswith(MODEL_SCOPE) and each not in wanted]:
            self._set_scope(scope, f"{subject}/{scope}", NO_POLICY, now)
        for scope, limits in wanted.items():
            own = Policy(limits=limits, shadow=policy.shadow)
            self._set_scope(scope, f"{subject}/{scope}", own, now)

    def _set_scope(self, name: str, subject: str, policy: Policy, now: float) -> None:
        found = self._scopes.get(name) or self._idle_scopes.pop(name, None)
        if found:
            found.set_policy(policy, now)
        if not policy.is_metered:
            self._scopes.pop(name, None)
            if found:
                self._idle_scopes[name] = found
        elif found:
            self._scopes[name] = found
        else:
            use = self._stored_uses.pop(name, None) or ScopeUse(self.tenant.tenant_id, name)
            self._scopes[name] = self._new_scope(use, subject, policy, now)
        counts_money = any(each.unit is BudgetUnit.MONEY for each in policy.budgets)
        (self._money_scopes.add if counts_money else self._money_scopes.discard)(name)
        self.is_metered = bool(self._scopes) or self.tenant.policy.shadow

    def _new_bucket(self, per_minute: int, full_at: int) -> Bucket | None:
        return new_bucket(per_minute, full_at)

    def _resized_bucket(self, bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
        return resized_bucket(bucket, per_minute, now)

    def _new_scope(self, use: ScopeUse, subject: str, policy: Policy, now: float) -> ScopeQuota:
        return ScopeQuota(use, subject, policy, now)

    # Requests.

    def check_limits(self, request: ReservationRequest, now: float, nanos: int = 0) -> tuple[str, ...]:
        """Raise LimitsExceeded if one more request would exceed a limit or a budget.

        Return the limits in shadow mode that it exceeds, by subject and name. `nanos` is the most it can cost.
        """
        exceeded: list[Exceeded] = []
        requests, tokens, limit = self._requests_bucket, self._tokens_bucket, self._concurrent_limit
        if requests and (wait := requests.wait(1, now)) != 0.0:
            exceeded.append(self._exceeded("requests", requests.text("requests", 1), wait))
        if tokens and (wait := tokens.wait(request.tokens, now)) != 0.0:
            exceeded.append(self._exceeded("tokens", tokens.text("tokens", request.tokens), wait))
        if limit and self.concurrent_requests >= limit:
            text = f"{self._concurrent_text()}, all in progress"
            exceeded.append(self._exceeded("concurrent_requests", text, self._mean_request_duration / limit))
        if self._scopes:
            for scope in self._scopes_of(request):
                exceeded += scope.exceeded(request, nanos, now, self._mean_request_duration)
        if not exceeded:
            return ()
        if refusing := [each for each in exceeded if not each.is_shadow]:
            raise limits_exceeded(self.tenant.tenant_id, refusing, self.rate_limits(request, now))
        return tuple(f"{each.subject} {each.name}" for each in exceeded)

    def reserve(self, request: ReservationRequest, now: float, shadow_refusals: tuple[str, ...] = ()) -> TakeRun | None:
        """Count a reservation, also beyond the limits if these were not checked. Return its take of tokens.

        A request that limits in shadow mode would have refused takes nothing from the rates in shadow mode, so that the
        next requests are judged as if it had been refused. It counts in the budgets, because it costs.
        """
        self.concurrent_requests += 1
        self.reserved_tokens += request.tokens
        if shadow_refusals:
            self.shadow_refusals.update(shadow_refusals)
            if self.tenant.policy.shadow:
                return None
        if self._requests_bucket:
            self._requests_bucket.spend(1, now)
        return self._tokens_bucket.take(request.tokens, now) if self._tokens_bucket else None

    def hold_scopes(
        self, request: ReservationRequest, now: float, nanos: int, *, is_shadowed: bool
    ) -> tuple[Hold, ...]:
        """Count a request in all scopes that apply. `is_shadowed`: a limit in shadow mode would have refused it."""
        return tuple(
            each.reserve(request, nanos, now, is_taken=not (is_shadowed and each.policy.shadow))
            for each in self._scopes_of(request)
        )

    def restore(self, reservation: Reservation, *, is_live: bool) -> tuple[Hold, ...]:
        """Count a reservation of the former process, whose tokens are in the stored state. Return what it holds."""
        request = reservation.request
        if is_live:
            self.concurrent_requests += 1
            self.reserved_tokens += request.tokens
        if not self._scopes:
            return ()
        nanos = reservation.reserved_nanos or 0
        return tuple(
            each.restore(request, nanos, reservation.reserved_at, is_live=is_live) for each in self._scopes_of(request)
        )

    def release(self, reservation: Reservation, unused_prompt: int, unused_output: int) -> None:
        """Remove a reservation, and give unused tokens back to the rates."""
        request = reservation.request
        self.concurrent_requests -= 1
        self.reserved_tokens -= request.tokens
        if self._tokens_bucket and reservation.take_run:
            self._tokens_bucket.settle(reservation.take_run, unused_prompt + unused_output)
        for hold in reservation.metering.holds:
            hold.scope.release(hold, request, reservation.reserved_nanos or 0, (unused_prompt, unused_output))

    def give_back(self, reservation: Reservation, charged_tokens: int, charged_nanos: int) -> None:
        """Give back to the budgets what a reservation was not charged."""
        tokens = max(0, reservation.request.max_chargeable_tokens - charged_tokens)
        nanos = max(0, (reservation.reserved_nanos or 0) - charged_nanos)
        for hold in reservation.metering.holds:
            hold.scope.give_back(hold, tokens, nanos)

    def charge(self, charge: Charge) -> None:
        self.prompt_tokens += charge.prompt_tokens
        self.output_tokens += charge.output_tokens
        if not charge.is_correction:
            self.requests += 1
            duration = max(0.0, charge.settled_at - charge.reservation.reserved_at)
            self._mean_request_duration += REQUEST_DURATION_GAIN * (duration - self._mean_request_duration)

    # State.

    def uses_of(self, reservation: Reservation) -> tuple[ScopeUse, ...]:
        """Return the state of the scopes that count a reservation. Those of a former tenant of that id are not ours."""
        holds = reservation.metering.holds
        return tuple(hold.scope.use for hold in holds if self._is_ours(hold.scope)) if holds else ()

    def budget_warning(self, reservation: Reservation, now: float) -> str:
        """Return a text on budgets beyond their soft share; empty if none is."""
        warnings = (hold.scope.warning(now) for hold in reservation.holds)
        return "; ".join(each for each in warnings if each)

    def scope(self, name: str = "") -> ScopeQuota | None:
        """Return the scope of the tenant, or of a key or a model; None if it has no limits of its kind."""
        return self._scopes.get(name)

    def limit_uses(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield name and used share of the limits and budgets of the tenant, without those of its keys and models."""
        for name, bucket in (("requests", self._requests_bucket), ("tokens", self._tokens_bucket)):
            if bucket:
                yield name, bucket.used_share(now)
        if limit := self._concurrent_limit:
            yield "concurrent_requests", self.concurrent_requests / limit
        if scope := self._scopes.get(""):
            yield from scope.limit_uses(now)

    def tokens_left(self, now: float, request: ReservationRequest | None = None, highest_nanos: int = 0) -> int | None:
        """Return the tokens of the largest request within the limits; None if there is no token limit.

        With a request, within those of its key and its model, too. A scope in shadow mode limits nothing.
        """
        left: list[int] = []
        if not self.tenant.policy.shadow:
            limit = self._concurrent_limit
            if limit and self.concurrent_requests >= limit:
                return 0
            if self._requests_bucket and not self._requests_bucket.available(now):
                return 0
            if self._tokens_bucket:
                left.append(self._tokens_bucket.available(now))
        if self._scopes:
            of_scopes = (
                each.tokens_left(now, highest_nanos) for each in self._scopes_of(request) if not each.policy.shadow
            )
            left += [each for each in of_scopes if each is not None]
        return min(left) if left else None

    def rate_limits(self, request: ReservationRequest, now: float) -> RateLimits | None:
        """Return the tightest limits per minute that apply to requests like this one; None if there are none."""
        message = RateLimits()
        self.write_rate_limits(message, request, now)
        return message if message.limit_requests or message.limit_tokens else None

    def write_rate_limits(self, message: RateLimits, request: ReservationRequest, now: float) -> None:
        """Fill an empty message with the tightest limits per minute. Without any, it is not touched.

        Limits in shadow mode are not among them.
        """
        is_shown = not self.tenant.policy.shadow
        requests = rate_state(self._requests_bucket, now) if self._requests_bucket and is_shown else None
        tokens = rate_state(self._tokens_bucket, now) if self._tokens_bucket and is_shown else None
        if self._scopes:
            shown = [each for each in self._scopes_of(request) if not each.policy.shadow]
            requests = _tightest(requests, (rate for each in shown for rate in each.request_rates(now)))
            tokens = _tightest(tokens, (rate for each in shown for rate in each.token_rates(now)))
        if requests:
            message.remaining_requests, message.limit_requests, message.reset_requests_millis = requests
        if tokens:
            message.remaining_tokens, message.limit_tokens, message.reset_tokens_millis = tokens

    def _scopes_of(self, request: ReservationRequest | None) -> Iterator[ScopeQuota]:
        """Return the scopes that apply to a request; without one, those of the tenant alone."""
        if found := self._scopes.get(""):
            yield found
        if request is None:
            return
        if found := self._scopes.get(f"{KEY_SCOPE}{request.key_id}"):
            yield found
        if found := self._scopes.get(f"{MODEL_SCOPE}{request.model}"):
            yield found

    def _is_ours(self, scope: ScopeQuota) -> bool:
        return scope in (self._scopes.get(scope.name), self._idle_scopes.get(scope.name))

    def _concurrent_text(self) -> str:
        return f"{self._concurrent_limit} concurrent requests"

    def _exceeded(self, name: str, description: str, wait: float | None) -> Exceeded:
        return Exceeded(f"tenant:{self.tenant.tenant_id}", name, description, wait, self.tenant.policy.shadow)


def _tightest(first: RateState | None, others: Iterable[RateState]) -> RateState | None:
    return min([*([first] if first else []), *others], default=None)
