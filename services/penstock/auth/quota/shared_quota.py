"""Shared quotas: limits and budgets of a tenant, its keys and its models of which this region enforces a share.

They are used where regions share limits. Without other regions, the plain quotas are used and pay for none of this.
"""

from collections.abc import Iterable
from dataclasses import replace

from penstock.auth.identity.policy import Budget, BudgetUnit, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.bucket import Bucket, TakeRun
from penstock.auth.quota.budget_period import DAY_S
from penstock.auth.quota.rejection import LimitsExceeded
from penstock.auth.quota.reservation import ReservationRequest
from penstock.auth.quota.scope_quota import Exceeded, Hold, ScopeQuota, ScopeUse, TokenRequest, budget_amount
from penstock.auth.quota.shared_bucket import RETRY_AFTER_S, SharedBucket
from penstock.auth.quota.tenant_quota import Balance, TenantQuota
from penstock.auth.regions.demand import Demand
from penstock.auth.regions.share import FULL, LargestShare, RegionShares, ScopeKey, Share, scaled, share_for

# s from the beginning of a day in which no part of a budget is given away: in another region, whose clock is behind,
# the former day may not have ended, and what was spent of it here is not counted any more.
DAY_BEGIN_S = 60.0
RETRY_S = 10.0  # s of refusals, after which a share is not expected to grow soon
LATE_RETRY_AFTER_S = 60.0  # s; from then on
EXPECTED_S = 5.0  # s beyond the told time to retry, for which a refused request is expected to be repeated


class RefusalMeter:
    """Shares that refused requests of one scope have wanted since the latest report, and need when repeated."""

    __slots__ = ("_expected", "_expected_until", "_latest", "_since", "wanted")

    def __init__(self) -> None:
        self.wanted = Share(0, 0)
        self._since = self._latest = 0.0  # s; of refusals in a row under one share
        self._expected = 0
        self._expected_until = 0.0  # s

    def want(self, share: Share) -> None:
        self.wanted = self.wanted.at_least(share)

    def refuse(self, buckets: Iterable[tuple[Bucket | None, int]], now: float) -> int:
        """Return the share of rates that admits the amounts that buckets refuse and a larger share might not.

        The request is expected to be repeated at the time that its caller is told. It needs this share then.
        """
        wanted, retry_after = 0, 0.0
        for bucket, amount in buckets:
            wait = bucket.wait(amount, now) if isinstance(bucket, SharedBucket) else None
            if wait and isinstance(bucket, SharedBucket):
                wanted, retry_after = max(wanted, share_for(amount, bucket.whole)), max(retry_after, wait)
        if wanted >= self.expected(now):
            self._expected, self._expected_until = wanted, now + retry_after + EXPECTED_S
        return wanted

    def expected(self, now: float) -> int:
        """Return the share of rates that the largest request needs that is expected to be repeated; 0: none is."""
        return self._expected if now < self._expected_until else 0

    def retry_after(self, now: float) -> float:
        """Return s until a request that the share refuses may be admitted, because the share has grown."""
        if now - self._latest > LATE_RETRY_AFTER_S:
            self._since = now
        self._latest = now
        return RETRY_AFTER_S if now - self._since < RETRY_S else LATE_RETRY_AFTER_S

    def pop(self) -> Share:
        wanted, self.wanted = self.wanted, Share(0, 0)
        return wanted

    def on_share(self) -> None:
        self._since = self._latest = 0.0


class SharedScopeQuota(ScopeQuota):
    """A scope of which this region enforces a share."""

    def __init__(
        self, use: ScopeUse, subject: str, policy: Policy, now: float, *, share: Share, largest: LargestShare
    ) -> None:
        self.share = share
        self.refusals = RefusalMeter()
        self._largest = largest
        super().__init__(use, subject, policy, now)
        self.key: ScopeKey = use.tenant_id, use.scope
        self._enforce()

    def set_policy(self, policy: Policy, now: float) -> None:
        super().set_policy(policy, now)
        self._enforce()

    def set_share(self, share: Share, now: float) -> None:
        self.share = share
        for bucket in self._buckets():
            bucket.set_share(share.rates, now)
        self.refusals.on_share()
        self._enforce()

    def used(self, now: float) -> Share:
        """Return what is used at present, in thousandths of the whole."""
        rates = max((each.used(now) for each in self._buckets()), default=0)
        rates, in_use = max(rates, self.refusals.expected(now)), self.in_use(now)
        return Share(max(rates, in_use.rates), in_use.budgets)

    def in_use(self, now: float) -> Share:
        """Return the least share that admits what is in progress and what was spent of the budgets."""
        limit = self.policy.limits.concurrent_requests
        rates = share_for(self.concurrent_requests, limit) if limit else 0
        used = (share_for(each.amount - self._left(each, now), each.amount) for each in self.policy.budgets)
        return Share(rates, max(used, default=0))

    def exceeded(self, request: TokenRequest, nanos: int, now: float, mean_duration: float) -> list[Exceeded]:
        found = super().exceeded(request, nanos, now, mean_duration)
        if found:
            self._want(request, nanos, now)
        return found

    def _want(self, request: TokenRequest, nanos: int, now: float) -> None:
        """Record the share that would admit a refused request."""
        amounts = (1, request.prompt_tokens, request.max_output_tokens, request.tokens)
        buckets = (self._requests, self._input, self._output, self._tokens)
        rates = [self.refusals.refuse(zip(buckets, amounts, strict=True), now)]
        if self._concurrent_limit and self.concurrent_requests >= self._concurrent_limit:
            rates.append(share_for(self.concurrent_requests + 1, self.policy.limits.concurrent_requests))
        budgets = []
        for whole, part in zip(self.policy.budgets, self._budgets, strict=True):
            amount = request.max_chargeable_tokens if whole.unit is BudgetUnit.TOKENS else nanos
            left = self._left(part, now)
            if left < amount and self._may_fit(whole, amount, now):
                budgets.append(share_for(part.amount - left + amount, whole.amount))
        self.refusals.want(Share(max(rates), max(budgets, default=0)))

    def _exceeded_budget(self, budget: Budget, amount: int, left: int, now: float) -> Exceeded:
        found, whole = super()._exceeded_budget(budget, amount, left, now), self._whole(budget)
        if self._may_fit(whole, amount, now):
            return found._replace(wait=self.refusals.retry_after(now))
        most = self._largest.part_of(whole.amount)
        if amount <= most:  # in the next period
            return found._replace(wait=self.budget_use(budget, now)[2] - now)
        text = f"{found.description}; this region can have {budget_amount(budget.unit, most)} of it at most"
        return found._replace(description=text, wait=None)

    def _may_fit(self, whole: Budget, amount: int, now: float) -> bool:
        """Return whether a larger share might admit an amount, as far as this region knows."""
        return self._left(replace(whole, amount=self._largest.part_of(whole.amount)), now) >= amount

    def _whole(self, budget: Budget) -> Budget:
        return next(each for each in self.policy.budgets if each.name == budget.name)

    def _enforce(self) -> None:
        """Compute the limits that this region enforces."""
        self._concurrent_limit = scaled(self.policy.limits.concurrent_requests, self.share.rates)
        self._budgets = tuple(
            replace(each, amount=scaled(each.amount, self.share.budgets)) for each in self.policy.budgets
        )

    def _buckets(self) -> list[SharedBucket]:
        found = (self._requests, self._input, self._output, self._tokens)
        return [each for each in found if isinstance(each, SharedBucket)]

    def _new_bucket(self, per_minute: int, full_at: int) -> Bucket | None:
        return SharedBucket(per_minute, self.share.rates, self._largest, full_at=full_at) if per_minute else None

    def _resized_bucket(self, bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
        if not per_minute or not isinstance(bucket, SharedBucket):
            return self._new_bucket(per_minute, 0)
        bucket.set_whole(per_minute, self.share.rates, now)
        return bucket

    def _concurrent_text(self) -> str:
        return concurrent_text(self._concurrent_limit, self.policy.limits.concurrent_requests)

    def _budget_text(self, budget: Budget) -> str:
        whole = self._whole(budget)
        part, unit = budget_amount(budget.unit, budget.amount), budget_amount(budget.unit, whole.amount)
        return f"budget of {part} in this region, of {unit} per {budget.period}"


class SharedTenantQuota(TenantQuota):
    """A tenant of whose limits and budgets this region enforces a share, which may differ for each scope."""

    def __init__(
        self,
        tenant: Tenant,
        balance: Balance | None = None,
        *,
        uses: Iterable[ScopeUse] = (),
        now: float,
        shares: RegionShares,
    ) -> None:
        self.share = shares.of(tenant.tenant_id, "")  # of the limits of the tenant
        self._shares = shares
        self._key: ScopeKey = tenant.tenant_id, ""
        self._refusals = RefusalMeter()
        super().__init__(tenant, balance, uses=uses, now=now)
        self._enforce()

    def set_tenant(self, tenant: Tenant, now: float) -> None:
        super().set_tenant(tenant, now)
        self._enforce()

    def set_share(self, scope: str, share: Share, now: float) -> None:
        """Set the share of a scope. What was spent stays spent, and what a rate gains is empty."""
        if not scope:
            self.share = share
            self._refusals.on_share()
            for bucket in self._buckets():
                bucket.set_share(share.rates, now)
            self._enforce()
        for scopes in (self._scopes, self._idle_scopes):
            if isinstance(found := scopes.get(scope), SharedScopeQuota):
                found.set_share(share, now)

    def share_of(self, scope: str) -> Share:
        """Return the share of a scope that is enforced."""
        found = self._shared_scope(scope)
        if not found and scope:
            return self._shares.of(self.tenant.tenant_id, scope)
        return found.share if found else self.share

    def share_in_use(self, scope: str, now: float) -> Share:
        """Return the least that the share of a scope may be lowered to."""
        found, own, share = self._shared_scope(scope), Share(0, 0), self.share_of(scope)
        if not scope and (limit := self.tenant.concurrent_requests):
            own = Share(share_for(self.concurrent_requests, limit), 0)
        in_use = own.at_least(found.in_use(now)) if found else own
        if now % DAY_S < DAY_BEGIN_S:
            in_use = Share(in_use.rates, FULL)
        return in_use.at_most(share)

    def pop_demand(self, scope: str, now: float) -> Demand | None:
        """Return what is used and wanted of a scope; None if it has neither limits nor budgets."""
        found = self._shared_scope(scope)
        used, wanted = (found.used(now), found.refusals.pop()) if found else (Share(0, 0), Share(0, 0))
        if not scope:
            limit, buckets = self.tenant.concurrent_requests, self._buckets()
            if not (found or buckets or limit):
                return None
            rates = [each.used(now) for each in buckets]
            if limit:
                rates.append(share_for(self.concurrent_requests, limit))
            used = used.at_least(Share(max(*rates, self._refusals.expected(now), 0), 0))
            wanted = wanted.at_least(self._refusals.pop())
        elif not found:
            return None
        return Demand(self.tenant.tenant_id, scope, used.rates, wanted.rates, used.budgets, wanted.budgets)

    def is_busy(self, scope: str, now: float) -> bool:
        """Return whether requests are in progress or expected to be repeated, so that demand is reported again."""
        found = self._shared_scope(scope)
        if found and (found.concurrent_requests or found.refusals.expected(now)):
            return True
        return not scope and bool(self.concurrent_requests or self._refusals.expected(now))

    def use_of(self, scope: str) -> tuple[ScopeUse, ...]:
        """Return the state of one scope; none if it has no limits of its kind."""
        found = self._shared_scope(scope)
        return (found.use,) if found else ()

    def check_limits(self, request: ReservationRequest, now: float, nanos: int = 0) -> tuple[str, ...]:
        try:
            shadow_refusals = super().check_limits(request, now, nanos)
        except LimitsExceeded:
            self._record_refusal(request, now)
            raise
        if shadow_refusals:
            self._record_refusal(request, now)
        return shadow_refusals

    def reserve(self, request: ReservationRequest, now: float, shadow_refusals: tuple[str, ...] = ()) -> TakeRun | None:
        self._shares.active.add(self._key)
        return super().reserve(request, now, shadow_refusals)

    def hold_scopes(
        self, request: ReservationRequest, now: float, nanos: int, *, is_shadowed: bool
    ) -> tuple[Hold, ...]:
        holds = super().hold_scopes(request, now, nanos, is_shadowed=is_shadowed)
        tenant_id = self.tenant.tenant_id
        self._shares.active.update((tenant_id, each.scope.name) for each in holds)
        return holds

    def _record_refusal(self, request: ReservationRequest, now: float) -> None:
        self._shares.active.add(self._key)
        self._shares.active.update(each.key for each in self._scopes_of(request) if isinstance(each, SharedScopeQuota))
        buckets = ((self._requests_bucket, 1), (self._tokens_bucket, request.tokens))
        rates = [self._refusals.refuse(buckets, now)]
        if self._concurrent_limit and self.concurrent_requests >= self._concurrent_limit:
            rates.append(share_for(self.concurrent_requests + 1, self.tenant.concurrent_requests))
        self._refusals.want(Share(max(rates), 0))

    def _enforce(self) -> None:
        self._concurrent_limit = scaled(self.tenant.concurrent_requests, self.share.rates)

    def _shared_scope(self, scope: str) -> SharedScopeQuota | None:
        found = self._scopes.get(scope)
        return found if isinstance(found, SharedScopeQuota) else None

    def _buckets(self) -> list[SharedBucket]:
        return [each for each in (self._requests_bucket, self._tokens_bucket) if isinstance(each, SharedBucket)]

    def _new_bucket(self, per_minute: int, full_at: int) -> Bucket | None:
        return SharedBucket(per_minute, self.share.rates, self._shares.largest, full_at=full_at) if per_minute else None

    def _resized_bucket(self, bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
        if not per_minute or not isinstance(bucket, SharedBucket):
            return self._new_bucket(per_minute, 0)
        bucket.set_whole(per_minute, self.share.rates, now)
        return bucket

    def _new_scope(self, use: ScopeUse, subject: str, policy: Policy, now: float) -> ScopeQuota:
        share = self._shares.of(use.tenant_id, use.scope)
        return SharedScopeQuota(use, subject, policy, now, share=share, largest=self._shares.largest)

    def _concurrent_text(self) -> str:
        return concurrent_text(self._concurrent_limit, self.tenant.concurrent_requests)


def concurrent_text(limit: int, whole: int) -> str:
    return f"{limit} of {whole} concurrent requests in this region"
