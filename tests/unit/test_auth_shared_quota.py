"""Limits of which a region enforces a share: what it admits, reports and keeps when the share changes."""

import pytest

from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Limits, Policy
from penstock.auth.identity.tenant import Tenant
from penstock.auth.quota.prices import PriceList
from penstock.auth.quota.rejection import LimitsExceeded
from penstock.auth.quota.reservation import ReservationRequest
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.auth.regions.share import FLOOR, FULL, LargestShare, Share, scaled, share_for

NOON = 1_800_014_400.0 - 1_800_014_400.0 % 86_400 + 43_200
MIDNIGHT = NOON + 43_200


class Region:
    """One table, with the share of each scope."""

    def __init__(self, share=FLOOR, **limits):
        self.shares, self.default, self.now, self.count = {}, share, NOON, 0
        self.largest = LargestShare()
        self.table = ReservationTable(ttl=1e9, prices=PriceList(), share_of=self.of, largest=self.largest)
        self.table.put_tenant(Tenant(tenant_id="acme", **limits), self.now)

    def of(self, tenant_id, scope):
        return self.shares.get((tenant_id, scope), self.default)

    def set_share(self, rates, budgets, scope=""):
        self.shares["acme", scope] = share = Share(rates, budgets)
        self.table.set_share("acme", scope, share, self.now)

    def reserve(self, prompt=1, output=0, key="k"):
        self.count += 1
        request = ReservationRequest(
            request_id=f"r{self.count}",
            tenant_id="acme",
            key_id=key,
            edge_id="e",
            model="m",
            prompt_tokens=prompt,
            max_output_tokens=output,
        )
        return self.table.reserve(request, f"i{self.count}", self.now)

    def admits(self, **tokens):
        try:
            self.reserve(**tokens)
        except LimitsExceeded:
            return False
        return True

    def admitted(self, **tokens):
        count = 0
        while self.admits(**tokens):
            count += 1
        return count

    def settle(self, reservation, prompt=0, output=0):
        return self.table.settle(reservation.reservation_id, prompt, output, "stop", self.now)


def refusal(region, **tokens):
    with pytest.raises(LimitsExceeded) as refused:
        region.reserve(**tokens)
    return refused.value


def day_budget(tokens):
    return Policy(budgets=(Budget(BudgetPeriod.DAY, BudgetUnit.TOKENS, tokens),))


def test_a_region_admits_its_part_of_a_limit_per_minute():
    region = Region(Share(250, 250), requests_per_minute=1_200)
    assert region.admitted() == 300
    with pytest.raises(LimitsExceeded, match="300 of 1200 requests per minute in this region, 1 requested"):
        region.reserve()


def test_the_smallest_part_of_a_limit_is_one():
    assert [scaled(limit, 50) for limit in (0, 1, 19, 40)] == [0, 1, 1, 2]
    region = Region(requests_per_minute=1, concurrent_requests=1)
    assert region.admitted() == 1


def test_a_change_of_the_share_changes_nothing_of_what_can_be_taken():
    region = Region(Share(500, 500), requests_per_minute=600)
    assert region.admitted() == 300
    region.set_share(900, 900)
    assert region.admitted() == 0
    region.now += 10.0
    assert region.admitted() == 90  # 540 a minute
    region.set_share(100, 100)
    region.now += 30.0
    assert region.admitted() == 30  # 60 a minute
    region.now += 60.0
    region.set_share(50, 50)
    assert region.admitted() == 30


def test_open_requests_give_back_after_a_change_of_the_share():
    region = Region(Share(500, 500), tokens_per_minute=1_000)
    reservation = region.reserve(prompt=400)
    region.set_share(400, 400)
    assert region.admitted(prompt=50) == 2
    region.settle(reservation, prompt=100)
    assert region.admitted(prompt=100) == 3


def test_a_request_above_the_share_may_be_repeated_and_one_above_the_limit_may_not():
    region = Region(tokens_per_minute=1_000)
    with pytest.raises(LimitsExceeded) as refused:
        region.reserve(prompt=700)
    assert refused.value.retry_after == 1.0
    (demand,) = region.table.pop_demands(region.now)
    assert demand.wanted_rates == 700
    with pytest.raises(LimitsExceeded) as refused:
        region.reserve(prompt=1_001)
    assert refused.value.retry_after is None
    (demand,) = region.table.pop_demands(region.now)
    assert demand.wanted_rates == 0


def test_a_request_above_the_largest_share_is_refused_for_good_and_is_told_what_fits():
    region = Region(tokens_per_minute=1_000, policy=day_budget(10_000))
    region.largest.thousandths = 850
    assert refusal(region, prompt=850).retry_after == 1.0
    assert "at most" not in refusal(region, prompt=850).message
    region.table.pop_demands(region.now)
    error = refusal(region, prompt=851)
    assert error.retry_after is None
    assert "50 of 1000 tokens per minute in this region, which can have 850 at most, 851 requested" in error.message
    assert error.message.endswith("request fewer tokens or have the limit raised")
    assert region.table.pop_demands(region.now)[0].wanted_rates == 0


def test_an_amount_above_the_largest_share_of_a_budget_never_fits_and_a_smaller_one_does_in_the_next_period():
    region = Region(Share(850, 850), policy=day_budget(1_000))
    region.largest.thousandths = 850
    error = refusal(region, prompt=851)
    assert error.retry_after is None
    assert "this region can have 850 tokens of it at most" in error.message
    region.reserve(prompt=100)
    assert refusal(region, prompt=800).retry_after == MIDNIGHT - region.now


def test_a_region_that_holds_more_than_the_largest_share_spends_it():
    region = Region(Share(950, 950), tokens_per_minute=1_000)
    region.largest.thousandths = 850
    assert region.admits(prompt=900)
    assert "which can have 950 at most" in refusal(region, prompt=960).message


def test_a_refused_request_is_counted_as_used_until_its_repetition_is_due():
    region = Region(Share(900, 50), tokens_per_minute=1_000)
    region.reserve(prompt=900)
    region.table.pop_demands(region.now)
    assert refusal(region, prompt=800).retry_after == pytest.approx(53.33, abs=0.01)
    for _ in range(58):
        region.now += 1.0
        assert region.table.pop_demands(region.now)[0].used_rates >= 800
    region.now += 1.0
    assert region.table.pop_demands(region.now)[0].used_rates < 200


def test_a_budget_is_shared_and_tells_what_it_lacks():
    region = Region(Share(250, 250), policy=day_budget(1_000))
    region.reserve(prompt=200)
    with pytest.raises(LimitsExceeded, match="250 tokens in this region, of 1000 tokens per day") as refused:
        region.reserve(prompt=100)
    assert refused.value.retry_after == 1.0
    (demand,) = region.table.pop_demands(region.now)
    assert (demand.used_budgets, demand.wanted_budgets) == (200, 300)
    region.set_share(250, 300)
    assert region.admits(prompt=100)


def test_a_budget_whose_share_does_not_grow_is_asked_for_less_often():
    region = Region(policy=day_budget(1_000))
    waits = []
    for _ in range(12):
        with pytest.raises(LimitsExceeded) as refused:
            region.reserve(prompt=100)
        waits.append(refused.value.retry_after)
        region.now += 1.0
    assert waits == [1.0] * 10 + [60.0] * 2


def test_a_share_keeps_what_is_in_use():
    region = Region(Share(800, 800), concurrent_requests=10, policy=day_budget(1_000))
    reservations = [region.reserve(prompt=111) for _ in range(3)]
    assert region.table.share_in_use("acme", "", region.now) == Share(300, 333)
    for each in reservations:
        region.settle(each, prompt=11)
    assert region.table.share_in_use("acme", "", region.now) == Share(0, 33)


def test_no_budget_is_given_away_at_the_beginning_of_a_day():
    region = Region(Share(800, 800), policy=day_budget(1_000))
    for seconds, least in ((-1.0, 0), (0.0, 800), (59.0, 800), (60.0, 0)):
        assert region.table.share_in_use("acme", "", MIDNIGHT + seconds).budgets == least


def test_the_share_of_a_key_is_its_own():
    region = Region(Share(100, 100))
    region.table.quota("acme").set_key("k", Policy(limits=Limits(requests_per_minute=100)), region.now)
    assert region.admitted() == 10
    region.set_share(500, 500, "key:k")
    region.now += 60.0
    assert region.admitted() == 50
    assert [each.scope for each in region.table.pop_demands(region.now)] == ["key:k"]


def test_demand_is_what_is_spent_per_minute():
    region = Region(Share(FULL, FULL), requests_per_minute=600)
    for _ in range(90):
        for _ in range(3):  # of 10 a second
            region.settle(region.reserve())
        region.now += 1.0
        demands = region.table.pop_demands(region.now)
    assert demands[0].used_rates == pytest.approx(300, rel=0.1)
    region.table.pop_demands(region.now)
    assert not region.table.pop_demands(region.now)


def test_the_least_share_of_an_amount_admits_it():
    for limit in (1, 7, 999, 1_000, 123_457):
        for amount in (0, 1, limit // 3, limit):
            assert amount <= max(1, scaled(limit, share_for(amount, limit)))


def test_an_operator_s_change_keeps_the_share():
    region = Region(Share(500, 500), requests_per_minute=100, concurrent_requests=10)
    region.table.put_tenant(Tenant(tenant_id="acme", requests_per_minute=200), region.now)
    assert region.admitted() == 100
    region.table.put_tenant(Tenant(tenant_id="acme", requests_per_minute=200, concurrent_requests=4), region.now)
    region.now += 60.0
    assert not region.admits()  # 100 are in progress
