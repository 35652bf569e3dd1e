"""Checks of regions that share limits: shares, what all regions admit together, revocations. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.auth.quota.budget_period import DAY_S
from penstock.auth.regions.share import FLOOR, FULL, ScopeKey, Share, ShareRow
from penstock.auth.store.store import Change, Charged, Reserved
from penstock.faults.checks.checker import LOST_OUTCOME, Violation
from penstock.faults.plan import PlannedTenant
from penstock.faults.world.host_clock import MAX_DRIFT

S_PER_MINUTE = 60.0


def exceeds(one: Share, other: Share) -> bool:
    """Return whether a share is above another one, in either part."""
    return one.at_most(other) != one


@dataclass(eq=False)
class ShareWatch:
    """What the stores have of shares: a region never holds more than its home counts for it."""

    bounds: dict[tuple[str, ScopeKey], Share] = field(default_factory=dict)  # by region; stored at home
    held: dict[tuple[str, ScopeKey], Share] = field(default_factory=dict)  # by region; stored there
    moves: int = 0  # of shares that regions have stored
    violations: list[Violation] = field(default_factory=list)

    def on_commit(self, row: ShareRow, *, is_home: bool) -> None:
        """A share is stored at home, or in its region."""
        key = row.region, (row.tenant_id, row.scope)
        (self.bounds if is_home else self.held)[key] = row.share
        self.moves += not is_home
        held, bound = self.held.get(key, FLOOR), self.bounds.get(key, FLOOR)
        if exceeds(held, bound):
            text = f"{row.region} has stored {held} of {key[1]}, for which its home counts {bound}"
            self.violations.append(Violation("share", text))

    @property
    def scopes(self) -> set[ScopeKey]:
        """The scopes of which a share has moved."""
        return {key for _, key in (*self.bounds, *self.held)}

    def check_enforced(self, key: ScopeKey, enforced: Mapping[str, Share]) -> None:
        """Check what the processes of all regions enforce at one moment: at most the whole."""
        if max(_total(enforced)) > FULL:
            self.violations.append(Violation("share", f"regions enforce {dict(enforced)} of {key}"))


def check_whole(key: ScopeKey, enforced: Mapping[str, Share]) -> Iterator[Violation]:
    """Check at rest that no share was lost, and that none is on its way."""
    if set(_total(enforced)) != {FULL}:
        yield Violation("share", f"of {key}, regions enforce {dict(enforced)} at rest, which is not the whole")


def _total(shares: Mapping[str, Share]) -> tuple[int, int]:
    return sum(each.rates for each in shares.values()), sum(each.budgets for each in shares.values())


class Admission(NamedTuple):
    """A request that auth of a region has admitted itself, and not an edge under a grant."""

    at: float  # s of the world, nearly
    region: str
    reservation_id: str
    reserved: int  # tokens
    day: int  # by the clock of the region


@dataclass(eq=False)
class LimitWatch:
    """What the regions admit of each tenant. `most` has the highest limits that were ever in force, by tenant."""

    most: Mapping[str, PlannedTenant]
    regions: int
    admissions: defaultdict[str, list[Admission]] = field(default_factory=lambda: defaultdict(list))
    used: dict[str, int] = field(default_factory=dict)  # tokens that requests have taken, by reservation
    charged: dict[str, int] = field(default_factory=dict)  # tokens of their charges
    violations: list[Violation] = field(default_factory=list)
    _live: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by tenant

    def on_commit(self, region: str, change: Change, at: float) -> None:
        """A region has stored a change. `at`: when its request was admitted, in s of the world."""
        match change:
            case Reserved(reservation, _, None):
                request = reservation.request
                tokens = request.prompt_tokens + request.max_output_tokens
                day = int(reservation.reserved_at // DAY_S)
                admission = Admission(at, region, reservation.reservation_id, tokens, day)
                self.admissions[request.tenant_id].append(admission)
                self._live[request.tenant_id].add(reservation.reservation_id)
                self._check_concurrent(request.tenant_id)
            case Charged(charge):
                name, request = charge.reservation.reservation_id, charge.reservation.request
                self._live[request.tenant_id].discard(name)
                self.charged[name] = charge.prompt_tokens + charge.output_tokens
                if charge.outcome == LOST_OUTCOME:
                    self.used[name] = request.prompt_tokens + request.max_output_tokens
                else:
                    self.used[name] = charge.prompt_tokens + charge.made_tokens

    def _check_concurrent(self, tenant_id: str) -> None:
        limit, live = self.most[tenant_id].concurrent_requests, len(self._live[tenant_id])
        if limit and live > limit + self.regions:
            text = f"{tenant_id} has {live} concurrent requests in all regions, of {limit} that it may have"
            self.violations.append(Violation("limit", text))

    def check(self) -> Iterator[Violation]:
        """Check limits per minute and budgets at the end. All worlds are within one month."""
        for tenant in self.most.values():
            found = sorted(self.admissions[tenant.tenant_id])
            by_day: Counter[int] = Counter()
            for each in found:
                by_day[each.day] += self.charged.get(each.reservation_id, 0)
            yield from self._check_budget(tenant.tenant_id, "month", by_day.total(), tenant.tokens_per_month)
            for charged in by_day.values():
                yield from self._check_budget(tenant.tenant_id, "day", charged, tenant.tokens_per_day)
            if tenant.tokens_per_minute:
                yield from self._check_windows(tenant, found)

    def _check_budget(self, tenant_id: str, period: str, charged: int, budget: int) -> Iterator[Violation]:
        if budget and charged > budget + self.regions:
            text = f"was charged {charged} tokens in all regions, of {budget} in the {period}"
            yield Violation("limit", f"{tenant_id} {text}")

    def _check_windows(self, tenant: PlannedTenant, found: list[Admission]) -> Iterator[Violation]:
        """Check each window between two requests: all regions together admit what one bucket would.

        The clocks of the regions drift while it lasts, and so do the times of its ends.
        """
        for place, first in enumerate(found):
            tokens = 0
            for each in found[place:]:
                taken = self.used.get(each.reservation_id, each.reserved)
                window_s = each.at - first.at + 2 * MAX_DRIFT * each.at
                allowed = tenant.tokens_per_minute * (1.0 + (1.0 + 2 * MAX_DRIFT) * window_s / S_PER_MINUTE)
                tokens += taken
                if tokens > allowed + self.regions:
                    text = f"took {tokens} tokens in {window_s:.1f} s until {each.at:.1f}, of {allowed:.0f}"
                    yield Violation("limit", f"{tenant.tenant_id} {text} in all regions")
                    return


def check_revoked(admissions: Collection[Admission], tenant_id: str, effective_at: float) -> Iterator[Violation]:
    """Check that no region admits a revoked key, `effective_at` s and later."""
    for each in admissions:
        if each.at > effective_at:
            text = f"{each.region} admitted a request of {tenant_id} at {each.at:.3f}, whose key is revoked"
            yield Violation("revocation", f"{text} since {effective_at:.3f}")


# Each region's totals, as they are stored there and at home.
TOTALS_OF_REGION = """
    SELECT hour, tenant_id, key_id, model, requests, prompt_tokens, cached_tokens, output_tokens, price_nanos,
        completed, cancelled, shed, failed, lost
    FROM hourly_usage WHERE region = ? ORDER BY tenant_id, hour, key_id, model
"""
SUMS_OF_LEDGER = """
    SELECT tenant_id, count(*), sum(prompt_tokens), sum(output_tokens) FROM ledger WHERE region = ?
    GROUP BY tenant_id ORDER BY tenant_id
"""
SUMS_OF_TOTALS = """
    SELECT tenant_id, sum(requests), sum(prompt_tokens), sum(output_tokens) FROM hourly_usage WHERE region = ?
    GROUP BY tenant_id HAVING sum(requests) > 0 ORDER BY tenant_id
"""
