"""Scope quota: limits and budgets of one scope: a tenant, a key, or a model of a tenant. No clock, no store."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Policy
from penstock.auth.quota.bucket import MINUTE_US, Bucket, TakeRun, to_micros
from penstock.auth.quota.budget_period import PeriodUse
from penstock.auth.quota.prices import PRICED_TOKENS
from penstock.auth.quota.rates import MAX_STORED, RateState, new_bucket, rate_state, resized_bucket, stored_full_at

KEY_SCOPE, MODEL_SCOPE = "key:", "model:"  # prefixes of the names of scopes; the tenant itself has the name ``


class TokenRequest(Protocol):
    """Tokens that a request asks to reserve."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def max_output_tokens(self) -> int: ...

    @property
    def tokens(self) -> int:
        """Prompt and most output."""

    @property
    def max_chargeable_tokens(self) -> int:
        """The same, with tokens that another request of the answer has emitted."""


class ScopeUse(NamedTuple):
    """State of a scope that survives a restart. Its reservations are part of the used amounts."""

    tenant_id: str
    scope: str
    requests_full_at: int = 0  # µs
    input_full_at: int = 0  # µs
    output_full_at: int = 0  # µs
    tokens_full_at: int = 0  # µs
    counted_since: float = 0.0  # s; reservations before this time were not counted in the periods
    day_start: int = 0  # s
    day_tokens: int = 0
    day_nanos: int = 0
    month_start: int = 0  # s
    month_tokens: int = 0
    month_nanos: int = 0


class Exceeded(NamedTuple):
    """A limit or a budget that a request would exceed."""

    subject: str
    name: str  # of the limit
    description: str
    wait: float | None  # s; None: the request alone exceeds the limit
    is_shadow: bool
    is_budget: bool = False


class Hold(NamedTuple):
    """What a reservation holds of one scope."""

    scope: "ScopeQuota"
    input_run: TakeRun | None
    output_run: TakeRun | None
    tokens_run: TakeRun | None
    day_start: int  # s; 0: it is not counted in the day
    month_start: int  # s; as above


class ScopeQuota:
    """Limits and budgets of one scope. All of them must admit a request, and it is counted in all of them."""

    def __init__(self, use: ScopeUse, subject: str, policy: Policy, now: float) -> None:
        latest = to_micros(now) + MINUTE_US  # later times mean that the clock was set back
        limits = policy.limits
        self.subject = subject
        self.policy = policy
        self._concurrent_limit = limits.concurrent_requests
        self._budgets = policy.budgets
        self.concurrent_requests = 0
        self.name = use.scope
        self._tenant_id = use.tenant_id
        self._requests = self._new_bucket(limits.requests_per_minute, min(use.requests_full_at, latest))
        self._input = self._new_bucket(limits.input_tokens_per_minute, min(use.input_full_at, latest))
        self._output = self._new_bucket(limits.output_tokens_per_minute, min(use.output_full_at, latest))
        self._tokens = self._new_bucket(limits.tokens_per_minute, min(use.tokens_full_at, latest))
        self._counted_since = use.counted_since
        self._periods: dict[BudgetPeriod, PeriodUse] = {}  # both or none, so that a later budget knows the use
        if policy.budgets or use.counted_since:
            self._counted_since = use.counted_since or now
            self._periods = {
                BudgetPeriod.DAY: PeriodUse(BudgetPeriod.DAY, use.day_start, use.day_tokens, use.day_nanos, now),
                BudgetPeriod.MONTH: PeriodUse(
                    BudgetPeriod.MONTH, use.month_start, use.month_tokens, use.month_nanos, now
                ),
            }

    def __repr__(self) -> str:
        return f"<ScopeQuota {self.subject} {self.concurrent_requests} held>"

    @property
    def use(self) -> ScopeUse:
        state = ScopeUse(
            self._tenant_id,
            self.name,
            stored_full_at(self._requests),
            stored_full_at(self._input),
            stored_full_at(self._output),
            stored_full_at(self._tokens),
            self._counted_since,
        )
        if not self._periods:
            return state
        day, month = self._periods.values()
        return state._replace(
            day_start=day.start,
            day_tokens=min(day.used_tokens, MAX_STORED),
            day_nanos=min(day.used_nanos, MAX_STORED),
            month_start=month.start,
            month_tokens=min(month.used_tokens, MAX_STORED),
            month_nanos=min(month.used_nanos, MAX_STORED),
        )

    def set_policy(self, policy: Policy, now: float) -> None:
        """Set new limits and budgets. What was used under the former ones stays used."""
        limits = policy.limits
        self._requests = self._resized_bucket(self._requests, limits.requests_per_minute, now)
        self._input = self._resized_bucket(self._input, limits.input_tokens_per_minute, now)
        self._output = self._resized_bucket(self._output, limits.output_tokens_per_minute, now)
        self._tokens = self._resized_bucket(self._tokens, limits.tokens_per_minute, now)
        if policy.budgets and not self._periods:
            self._counted_since = now
            self._periods = {each: PeriodUse(each, 0, 0, 0, now) for each in BudgetPeriod}
        self.policy = policy
        self._concurrent_limit = limits.concurrent_requests
        self._budgets = policy.budgets

    def _new_bucket(self, per_minute: int, full_at: int) -> Bucket | None:
        return new_bucket(per_minute, full_at)

    def _resized_bucket(self, bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
        return resized_bucket(bucket, per_minute, now)

    # Requests.

    def exceeded(self, request: TokenRequest, nanos: int, now: float, mean_duration: float) -> list[Exceeded]:
        """Return the limits and budgets that the request would exceed. `mean_duration` in s is of recent requests."""
        found = self._exceeded_rates(request, now)
        limit = self._concurrent_limit
        if limit and self.concurrent_requests >= limit:
            text = f"{self._concurrent_text()}, all in progress"
            found.append(self._exceeded("concurrent_requests", text, mean_duration / limit))
        for budget in self._budgets:
            amount = request.max_chargeable_tokens if budget.unit is BudgetUnit.TOKENS else nanos
            if (left := self._left(budget, now)) < amount:
                found.append(self._exceeded_budget(budget, amount, left, now))
        return found

    def reserve(self, request: TokenRequest, nanos: int, now: float, *, is_taken: bool = True) -> Hold:
        """Count a request, also beyond the limits. Without `is_taken` it takes nothing from the limits per minute."""
        self.concurrent_requests += 1
        input_run = output_run = tokens_run = None
        if is_taken:
            if self._requests:
                self._requests.spend(1, now)
            input_run = self._input.take(request.prompt_tokens, now) if self._input else None
            output_run = self._output.take(request.max_output_tokens, now) if self._output else None
            tokens_run = self._tokens.take(request.tokens, now) if self._tokens else None
        day_start = month_start = 0
        if self._periods:
            tokens = request.max_chargeable_tokens
            day, month = self._periods.values()
            day.advance(now)
            month.advance(now)
            day_start, month_start = day.reserve(tokens, nanos), month.reserve(tokens, nanos)
        return Hold(self, input_run, output_run, tokens_run, day_start, month_start)

    def restore(self, request: TokenRequest, nanos: int, reserved_at: float, *, is_live: bool) -> Hold:
        """Return what a reservation of the former process holds. Its tokens are in the stored use."""
        starts = []
        for period in self._periods.values():
            is_counted = reserved_at >= max(self._counted_since, period.start)
            starts.append(period.start if is_counted else 0)
            if is_counted and is_live:
                period.reserve_again(request.max_chargeable_tokens, nanos)
        self.concurrent_requests += is_live
        return Hold(self, None, None, None, *(starts or (0, 0)))

    def release(self, hold: Hold, request: TokenRequest, nanos: int, unused: tuple[int, int]) -> None:
        """End a reservation of which `unused` prompt and output tokens were not computed."""
        self.concurrent_requests -= 1
        unused_input, unused_output = unused
        if self._input and hold.input_run:
            self._input.settle(hold.input_run, unused_input)
        if self._output and hold.output_run:
            self._output.settle(hold.output_run, unused_output)
        if self._tokens and hold.tokens_run:
            self._tokens.settle(hold.tokens_run, unused_input + unused_output)
        for start, period in zip((hold.day_start, hold.month_start), self._periods.values(), strict=False):
            period.release(start, request.max_chargeable_tokens, nanos)

    def give_back(self, hold: Hold, tokens: int, nanos: int) -> None:
        """Give back what was reserved of the budgets and not charged."""
        for start, period in zip((hold.day_start, hold.month_start), self._periods.values(), strict=False):
            period.give_back(start, tokens, nanos)

    # State.

    def tokens_left(self, now: float, highest_nanos: int) -> int | None:
        """Return the tokens of the largest request within limits and budgets; None if none limits tokens.

        `highest_nanos`: price of the most expensive `PRICED_TOKENS` tokens.
        """
        limit = self._concurrent_limit
        if (limit and self.concurrent_requests >= limit) or (self._requests and not self._requests.available(now)):
            return 0
        found = [each.available(now) for each in (self._input, self._output, self._tokens) if each]
        for budget in self._budgets:
            left = max(0, self._left(budget, now))
            if budget.unit is BudgetUnit.TOKENS:
                found.append(left)
            elif highest_nanos:
                found.append(left * PRICED_TOKENS // highest_nanos)
        return min(found, default=None)

    def request_rates(self, now: float) -> list[RateState]:
        return [rate_state(self._requests, now)] if self._requests else []

    def token_rates(self, now: float) -> list[RateState]:
        return [rate_state(each, now) for each in (self._input, self._output, self._tokens) if each]

    def budget_use(self, budget: Budget, now: float) -> tuple[int, int, int]:
        """Return the spent and the reserved amount of a budget, and the end of its period in s."""
        period = self._periods[budget.period]
        period.advance(now)
        if budget.unit is BudgetUnit.TOKENS:
            return period.used_tokens - period.reserved_tokens, period.reserved_tokens, period.end
        return period.used_nanos - period.reserved_nanos, period.reserved_nanos, period.end

    def limit_uses(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield name and used share of the limits of tokens and of the budgets; reserved amounts count as used."""
        for name, bucket in (("input_tokens", self._input), ("output_tokens", self._output)):
            if bucket:
                yield name, bucket.used_share(now)
        for budget in self._budgets:
            yield f"budget_{budget.name}", 1 - self._left(budget, now) / budget.amount

    def warning(self, now: float) -> str:
        """Return a text on the budget that is used most beyond the soft share; empty if none is."""
        soft_share = self.policy.soft_share
        if not (soft_share and self.policy.budgets):
            return ""
        share, budget = max((1 - self._left(each, now) / each.amount, each.name) for each in self.policy.budgets)
        return f"{self.subject} has used {share:.1%} of its budget {budget}" if share >= soft_share else ""

    def _left(self, budget: Budget, now: float) -> int:
        spent, reserved, _ = self.budget_use(budget, now)
        return budget.amount - spent - reserved

    def _exceeded_rates(self, request: TokenRequest, now: float) -> list[Exceeded]:
        found: list[Exceeded] = []
        for name, bucket, amount in (
            ("requests", self._requests, 1),
            ("input_tokens", self._input, request.prompt_tokens),
            ("output_tokens", self._output, request.max_output_tokens),
            ("tokens", self._tokens, request.tokens),
        ):
            if bucket and (wait := bucket.wait(amount, now)) != 0.0:
                found.append(self._exceeded(name, bucket.text(name.replace("_", " "), amount), wait))
        return found

    def _exceeded_budget(self, budget: Budget, amount: int, left: int, now: float) -> Exceeded:
        spent, reserved, end = self.budget_use(budget, now)
        text = (
            f"{self._budget_text(budget)}:"
            f" {spent / budget.amount:.1%} is spent, {reserved / budget.amount:.1%} is reserved,"
            f" {budget_amount(budget.unit, max(0, left))} are left and {budget_amount(budget.unit, amount)} requested;"
            f" it begins anew at {utc_text(end)}"
        )
        wait = None if amount > budget.amount else end - now
        return self._exceeded(f"budget_{budget.name}", text, wait, is_budget=True)

    def _concurrent_text(self) -> str:
        return f"{self._concurrent_limit} concurrent requests"

    def _budget_text(self, budget: Budget) -> str:
        return f"budget of {budget_amount(budget.unit, budget.amount)} per {budget.period}"

    def _exceeded(self, name: str, description: str, wait: float | None, *, is_budget: bool = False) -> Exceeded:
        return Exceeded(self.subject, name, description, wait, self.policy.shadow, is_budget)


def budget_amount(unit: BudgetUnit, amount: int) -> str:
    return f"{amount} tokens" if unit is BudgetUnit.TOKENS else f"{amount / 1e9:.9g} of money"


def utc_text(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
