"""Movement of one scope: recent demand of all regions, and when shares move, damped against oscillation."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.auth.regions.demand import Demand
from penstock.auth.regions.share import FULL
from penstock.auth.regions.targets import SMALLEST, RegionNeed, targets_of

HOME = ""  # the home region in maps by region
RATES, BUDGETS = 0, 1  # places in a share
SETTLING_S = 3.0  # s after a change, in which refusals of the region do not count: its rates fill slowly
REFUSAL_S = 3.0  # s for which a reported refusal counts: clients repeat a refused request after 1 s
DAMPING_S = 10.0  # s for which shares must differ from their targets before they move, if no region refuses requests
STEP = (50, 10)  # least move of rates and of budgets
MIN_STEP = 10  # least part that a region gives up for another one that lacks a whole step, or while it is idle
IDLE_S = 60.0  # s without a request, after which a region has no demand
IDLE_IF_REFUSED_S = 10.0  # the same, while another region refuses requests
RETRY_S = 5.0  # s until a share is lowered again that could not be lowered as far as asked


@dataclass(slots=True)
class Report:
    """The latest demand of one region."""

    demand: Demand
    at: float  # s
    wanted: list[int] = field(default_factory=lambda: [0, 0])
    refused_at: list[float] = field(default_factory=lambda: [0.0, 0.0])  # s; of `wanted`


@dataclass(slots=True)
class Movement:
    """Demand for one scope. `now` is an argument."""

    reports: dict[str, Report] = field(default_factory=dict)  # by region
    _differs_since: list[float | None] = field(default_factory=lambda: [None, None])
    _changed: dict[str, bool] = field(default_factory=dict)  # since the latest plan; whether more was in use
    _settled_at: dict[str, float] = field(default_factory=dict)  # s; by region
    _retry_at: dict[str, float] = field(default_factory=dict)  # s; by region

    def add(self, region: str, demand: Demand, now: float) -> None:
        report = self.reports.setdefault(region, Report(demand, now))
        report.demand, report.at = demand, now
        for part, wanted in enumerate((demand.wanted_rates, demand.wanted_budgets)):
            if wanted and now >= self._settled_at.get(region, 0.0):
                report.wanted[part], report.refused_at[part] = wanted, now

    def on_changed(self, region: str, *, is_hindered: bool) -> None:
        """Forget refusals under the former share. `is_hindered`: more was in use than the region was asked to keep."""
        self._changed[region] = is_hindered

    def has_ended(self, now: float) -> bool:
        return all(now - each.at > IDLE_S for each in self.reports.values())

    def plan(
        self, part: int, shares: Mapping[str, int], present: Collection[str], least: int, now: float
    ) -> dict[str, int]:
        """Return new shares of regions.

        `shares` are of all regions; those without contact are not `present`. `least` is that of the home region.
        """
        self._settle_changes(now)
        needs = self._needs(part, shares, present, least, now)
        targets = targets_of(needs)
        is_exceeded, is_refused = shares[HOME] < SMALLEST, any(each.is_refusing for each in needs)
        if not (is_exceeded or is_refused or self._is_due(part, shares, targets, now)):
            return {}
        step = STEP[part] if is_refused else max(STEP)
        lacks_much = any(each.is_refusing and targets[each.region] - each.share >= step for each in needs)
        fits_then = any(each.share < each.wanted <= targets[each.region] for each in needs)
        lowering_step = 1 if fits_then else MIN_STEP if is_exceeded or lacks_much else step
        moves: dict[str, int] = {}
        own_left = shares[HOME] - max(least, targets[HOME])
        for each in sorted(needs, key=lambda each: each.share - targets[each.region]):
            if each.is_fixed or each.region == HOME:
                continue
            target = targets[each.region]
            if target < each.share:
                is_worthwhile = each.share - target >= (min(MIN_STEP, lowering_step) if each.is_idle else lowering_step)
                if is_worthwhile and now >= self._retry_at.get(each.region, 0.0):
                    moves[each.region] = target
            elif not is_refused or each.is_refusing:
                raised = each.share + min(target - each.share, own_left)
                if raised - each.share >= step or each.share < each.wanted <= raised:
                    moves[each.region] = raised
                    own_left -= raised - each.share
        return moves

    def _settle_changes(self, now: float) -> None:
        """Forget refusals under former shares."""
        for region, is_hindered in self._changed.items():
            self._settled_at[region] = now + SETTLING_S
            if is_hindered:
                self._retry_at[region] = now + RETRY_S
            if report := self.reports.get(region):
                report.wanted = [0, 0]
        self._changed.clear()

    def _needs(
        self, part: int, shares: Mapping[str, int], present: Collection[str], least: int, now: float
    ) -> list[RegionNeed]:
        is_refused = any(self._wanted(each, part, now) for each in self.reports)
        idle_s = IDLE_IF_REFUSED_S if is_refused else IDLE_S
        found = []
        for region, share in shares.items():
            report = self.reports.get(region)
            used = (report.demand.used_rates, report.demand.used_budgets)[part] if report else 0
            wanted = self._wanted(region, part, now)
            smallest = max(SMALLEST, least if region == HOME else 0)
            if part == BUDGETS:  # what is spent stays spent
                smallest = max(smallest, min(used, share))
            found.append(
                RegionNeed(
                    region,
                    share,
                    used,
                    wanted,
                    min(smallest, FULL),
                    is_idle=not (used or wanted) or report is None or now - report.at > idle_s,
                    is_fixed=region != HOME and region not in present,
                )
            )
        return found

    def _wanted(self, region: str, part: int, now: float) -> int:
        report = self.reports.get(region)
        return report.wanted[part] if report and now - report.refused_at[part] <= REFUSAL_S else 0

    def _is_due(self, part: int, shares: Mapping[str, int], targets: Mapping[str, int], now: float) -> bool:
        """Return whether a share has differed from its target for long enough."""
        if all(abs(targets[region] - share) < max(STEP) for region, share in shares.items()):
            self._differs_since[part] = None
            return False
        since = self._differs_since[part]
        if since is None:
            since = self._differs_since[part] = now
        return now - since >= DAMPING_S
