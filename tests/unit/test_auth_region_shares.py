"""Shares of limits move to the regions that need them, and never make more than the whole."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.auth.identity.policy import Budget, BudgetPeriod, BudgetUnit, Policy
from penstock.auth.quota.bucket import Bucket
from penstock.auth.quota.budget_period import DAY_S
from penstock.auth.quota.rejection import LimitsExceeded
from penstock.auth.regions.demand import Demand
from penstock.auth.regions.granted import GrantedShares
from penstock.auth.regions.held import HeldShares
from penstock.auth.regions.share import FLOOR, FULL, Share, ShareRow
from penstock.auth.regions.targets import RegionNeed, targets_of
from penstock.chassis.errors import InvalidArgument
from shared_regions import PARTITION, TENANT, SharedRegions

MIDNIGHT = 1_800_000_000.0 - 1_800_000_000.0 % DAY_S + DAY_S
LIMIT = 1_200
NOTHING = Share(0, 0)


def run(world, seconds, *demands, changes_of_last=0.0):
    """Send requests of 1 token at a constant rate per minute from each region. Return admitted requests by region."""
    admitted, due, end = Counter(), [world.now] * len(demands), world.now + seconds
    while world.now < end - 1e-6:
        for place, per_minute in enumerate(demands):
            region = world.regions[place]
            while per_minute and due[place] <= world.now:
                due[place] += 60.0 / per_minute
                if reservation := region.reserve(1):
                    region.settle(reservation, 1)
                    admitted[region.name] += 1
        world.advance(0.1)
    return admitted


def rates(world):
    return [each.share.rates for each in world.regions]


@pytest.mark.parametrize("per_minute", [60, 400, 1_100, 3_000])
def test_the_only_region_with_demand_gets_nearly_all_within_15_s(per_minute):
    world = SharedRegions(requests_per_minute=LIMIT)
    run(world, 15.0, 0, per_minute)
    assert rates(world) == [50, 950]
    run(world, 5.0)
    run(world, 15.0, per_minute, 0)
    if per_minute > 60:  # what the smallest share does not serve
        assert rates(world)[0] >= 900


def test_regions_with_equal_demand_get_equal_parts():
    for per_minute in (500, 3_000):
        world = SharedRegions(requests_per_minute=LIMIT)
        run(world, 60.0, per_minute, per_minute)
        assert 450 <= world.home.share.rates <= 550
        assert sum(rates(world)) == FULL


def test_three_other_regions_share_by_need():
    world = SharedRegions(3, requests_per_minute=LIMIT)
    run(world, 150.0, 2_000, 100, 2_000, 0)
    home, few, many, none = rates(world)
    assert none == 50
    assert 80 <= few <= 200
    assert abs(home - many) <= 60
    admitted = run(world, 60.0, 2_000, 100, 2_000, 0)
    assert admitted["r0"] >= 99
    assert admitted.total() >= 0.93 * LIMIT


@pytest.mark.parametrize("demands", [(600, 300), (1_500, 1_500), (1_500, 200), (100, 1_500), (40, 40), (900, 250)])
def test_constant_demand_moves_nothing_after_a_while(demands):
    world = SharedRegions(requests_per_minute=LIMIT)
    run(world, 120.0, *demands)
    former = world.changes
    admitted = run(world, 120.0, *demands)
    assert world.changes == former
    assert admitted.total() >= 0.92 * 2 * min(LIMIT, sum(demands))


def test_one_concurrent_request_is_possible_in_each_region():
    world = SharedRegions(concurrent_requests=1)
    for region in world.regions:
        assert region.reserve(1)


def test_concurrent_requests_move_with_demand():
    world = SharedRegions(concurrent_requests=40)
    other = world.regions[1]
    held = []
    for _ in range(8):
        while reservation := other.reserve(1):
            held.append(reservation)
        world.advance(1.0)
    assert len(held) == 38
    run(world, 90.0)
    assert world.regions[1].share.rates >= 950  # in progress for longer than demand is remembered
    for each in held:
        other.settle(each, 1)


def test_a_region_that_is_cut_off_goes_on_with_its_share():
    world = SharedRegions(requests_per_minute=LIMIT)
    run(world, 60.0, 3_000, 3_000)
    world.cut("r0")
    admitted = run(world, 120.0, 3_000, 3_000)
    assert admitted["home"] == pytest.approx(LIMIT, rel=0.05)  # its half of 2 minutes
    assert admitted["r0"] == pytest.approx(LIMIT, rel=0.05)
    run(world, 60.0, 3_000, 0)
    assert rates(world)[1] >= 450
    world.connect("r0")
    run(world, 15.0, 3_000, 0)
    assert rates(world)[0] >= 900


def test_a_budget_is_spent_in_full_wherever_it_is_wanted():
    world = SharedRegions(policy=Policy(budgets=(Budget(BudgetPeriod.DAY, BudgetUnit.TOKENS, 10_000),)))
    spent = 0
    for turn in range(120):
        for _ in range(200):
            region = world.regions[turn // 10 % 2]
            if reservation := region.reserve(7):
                region.settle(reservation, 7)
                spent += 7
        world.advance(1.0)
    assert 9_900 <= spent <= 10_000


def test_a_large_request_gets_the_share_that_it_needs():
    world = SharedRegions(tokens_per_minute=1_000)
    assert not world.regions[1].reserve(900)
    world.advance(2.0)
    assert world.regions[1].share.rates == 950
    world.advance(60.0)  # what was moved begins empty
    assert world.regions[1].reserve(900)


class Audit:
    """What one bucket, and one budget, would have admitted."""

    def __init__(self, world, limits):
        self.world, self.live, self.spent = world, [], Counter()
        self.allowance = len(world.regions)  # by rounding
        self.bucket = Bucket(limits["requests_per_minute"] + self.allowance)
        self.most_concurrent = limits["concurrent_requests"] + self.allowance

    def on_admitted(self, region, reservation, tokens):
        assert self.bucket.wait(1, self.world.now) == 0.0
        self.bucket.spend(1, self.world.now)
        self.live.append((region, reservation))
        assert len(self.live) <= self.most_concurrent
        self.spent[region.now // DAY_S] += tokens


_STEPS = st.lists(
    st.tuples(st.sampled_from("rrrrrrrrssswwwcCRRlf"), st.integers(0, 3), st.integers(1, 60), st.floats(0.05, 3.0)),
    min_size=20,
    max_size=120,
)


@settings(max_examples=120, deadline=None)
@given(
    steps=_STEPS,
    others=st.integers(1, 3),
    skews=st.tuples(*[st.floats(-0.5, 0.5)] * 4),
    before=st.sampled_from([-3_600.0, 1.0, 4.0, 30.0]),
    budget=st.integers(50, 3_000),
)
def test_no_sequence_of_faults_admits_more_than_one_region_would(steps, others, skews, before, budget):
    """Requests, settlements, cut links, new streams, restarts that lose the latest changes, and new limits."""
    policy = Policy(budgets=(Budget(BudgetPeriod.DAY, BudgetUnit.TOKENS, budget),))
    limits = {"requests_per_minute": 240, "concurrent_requests": 30, "policy": policy}
    lower = limits | {"requests_per_minute": 100, "concurrent_requests": 10}
    world = SharedRegions(others, start=MIDNIGHT - before, skews=skews, **limits)
    audit, names = Audit(world, limits), list(world.others)
    for kind, place, number, seconds in steps:
        region, name = world.regions[place % len(world.regions)], names[place % others]
        match kind:
            case "r":
                for _ in range(number):
                    if reservation := region.reserve(number):
                        audit.on_admitted(region, reservation, number)
            case "s":
                for _ in range(min(number, len(audit.live))):
                    settled_at, reservation = audit.live.pop()
                    settled_at.settle(reservation, reservation.request.prompt_tokens)
            case "w":
                world.advance(seconds)
            case "c":
                world.cut(name)
            case "C":
                world.connect(name)
            case "R":
                world.restart(region)
            case "l":
                world.set_tenant(**lower)
            case "f":
                world.set_tenant(**limits)
        world.check()
    for spent in audit.spent.values():
        assert spent <= budget + audit.allowance


@settings(max_examples=40, deadline=None)
@given(
    bursts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200), st.floats(0.5, 8.0)), min_size=5, max_size=30),
    others=st.integers(1, 3),
    faults=st.sets(st.integers(0, 29), max_size=3),
)
def test_bursts_in_any_region_are_admitted_as_by_one_bucket(bursts, others, faults):
    """Each burst is repeated until its end, so that shares move while they are spent."""
    world = SharedRegions(others, requests_per_minute=240)
    bucket = Bucket(240 + others + 1)
    for place, (region_place, number, seconds) in enumerate(bursts):
        region, end = world.regions[region_place % (others + 1)], world.now + seconds
        if place in faults:
            world.restart(region)
        while world.now < end:
            for _ in range(number):
                if (reservation := region.reserve(1)) is None:
                    break
                assert bucket.wait(1, world.now) == 0.0
                bucket.spend(1, world.now)
                region.settle(reservation, 1)
            world.advance(0.5)


def test_a_budget_is_kept_at_midnight_where_clocks_differ():
    budget = Budget(BudgetPeriod.DAY, BudgetUnit.TOKENS, 1_000)
    world = SharedRegions(start=MIDNIGHT - 8.0, skews=(4.0, -4.0), policy=Policy(budgets=(budget,)))
    spent = Counter()
    assert world.home.reserve(900)
    spent[world.home.now // DAY_S] += 900
    for _ in range(100):
        for region, tokens in zip(world.regions, (1, 10), strict=True):
            if region.reserve(tokens):
                spent[region.now // DAY_S] += tokens
        world.advance(0.2)
    assert len(spent) == 2
    assert max(spent.values()) <= 1_000 + 2


# Cores.


def test_an_unknown_region_and_a_share_above_the_whole_are_refused():
    granted = GrantedShares(["us"])
    with pytest.raises(InvalidArgument):
        granted.on_begin("us", PARTITION, [ShareRow(TENANT, "", "us", FULL + 1, 0)])
    with pytest.raises(InvalidArgument):
        granted.on_begin("us", (PARTITION + 1) % 64, [ShareRow(TENANT, "", "us", 100, 100)])
    with pytest.raises(InvalidArgument):
        granted.on_held("us", 1, ShareRow(TENANT, "", "us", 100, 100))


def test_a_late_confirmation_has_no_effect():
    granted = GrantedShares(["us"])
    granted.on_begin("us", PARTITION, [])
    granted.on_demand("us", Demand(TENANT, "", 50, 17), 1.0)
    (change,) = granted.decide([], lambda *_: NOTHING, 1.0)
    assert (change.row.share, change.is_raise) == (Share(950, 50), True)
    granted.on_end("us", PARTITION)
    assert granted.on_held("us", change.number, ShareRow(TENANT, "", "us", 50, 50)) == []
    assert granted.own(TENANT, "") == Share(50, 950)
    assert granted.on_begin("us", PARTITION, []) == [ShareRow(TENANT, "", "us", *FLOOR)]
    assert granted.own(TENANT, "") == Share(950, 950)


def test_a_raise_that_was_not_sent_is_taken_back():
    granted = GrantedShares(["us"])
    granted.on_begin("us", PARTITION, [])
    granted.on_demand("us", Demand(TENANT, "", 50, 17), 1.0)
    (change,) = granted.decide([], lambda *_: NOTHING, 1.0)
    granted.on_unsent(change)
    assert granted.own(TENANT, "") == Share(950, 950)


def test_a_region_that_claims_too_much_is_lowered():
    granted = GrantedShares(["us", "ap"])
    for region in ("us", "ap"):
        granted.on_begin(region, PARTITION, [ShareRow(TENANT, "", region, 600, 600)])
    assert granted.own(TENANT, "") == NOTHING
    assert granted.excess_claims == 2
    changes = granted.decide([], lambda *_: NOTHING, 1.0)
    assert sum(each.row.rates for each in changes) <= FULL - FLOOR.rates
    for each in changes:
        granted.on_held(each.row.region, each.number, each.row)
    assert granted.own(TENANT, "").rates >= FLOOR.rates


def test_a_share_that_is_not_stored_yet_is_reported_as_the_most_that_it_may_be():
    held = HeldShares("us")
    held.restore([ShareRow(TENANT, "", "us", 600, 600), ShareRow(TENANT, "", "ap", 900, 900)])
    row = held.on_share(ShareRow(TENANT, "", "us", 100, 700), Share(200, 0))
    assert row == ShareRow(TENANT, "", "us", 200, 700)
    assert held.of(TENANT, "") == Share(200, 700)
    assert held.rows_of(PARTITION) == [ShareRow(TENANT, "", "us", 600, 700)]
    held.on_stored(row)
    assert held.rows_of(PARTITION) == [row]
    held.forget(lambda each: each == TENANT)
    assert held.of(TENANT, "") == FLOOR


@given(
    st.lists(
        st.tuples(st.integers(50, 1_000), st.integers(0, 1_000), st.integers(0, 1_000), st.booleans()),
        min_size=2,
        max_size=4,
    )
)
def test_targets_make_at_most_the_whole(regions):
    needs = [
        RegionNeed(str(place), share * 700 // sum(each[0] for each in regions) + 50, used, wanted, is_idle=idle)
        for place, (share, used, wanted, idle) in enumerate(regions)
    ]
    targets = targets_of(needs)
    assert sum(targets.values()) <= FULL
    assert all(each >= FLOOR.rates for each in targets.values())


LARGEST = {1: 950, 2: 900, 3: 850}


def admitted_after(world, region, tokens, deadline, others=()):
    """Repeat a request as its errors say until it is admitted. Return the s; None: not before the deadline.

    `others` are regions that spend 1 token every 5 s meanwhile.
    """
    start, spent_at = world.now, world.now
    while world.now - start < deadline:
        try:
            region.settle(region.try_to_reserve(tokens), tokens)
        except LimitsExceeded as error:
            due = world.now + error.retry_after
        else:
            return world.now - start
        while world.now < due:
            world.advance(0.5)
            if world.now - spent_at >= 5.0:
                spent_at = world.now
                for each in others:
                    if reservation := each.reserve(1):
                        each.settle(reservation, 1)
    return None


@settings(max_examples=60, deadline=None)
@given(
    others=st.integers(1, 3),
    place=st.integers(0, 3),
    bursts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400), st.floats(0.5, 30.0)), max_size=8),
    lacking=st.integers(0, 5) | st.integers(0, 900),
)
def test_a_request_fits_if_one_region_can_have_its_share_and_no_other_one_uses_it(others, place, bursts, lacking):
    """Whatever the shares were before. Above the largest share, it is refused at once and for good."""
    world = SharedRegions(others, tokens_per_minute=1_000)
    for burst_place, number, seconds in bursts:
        for _ in range(number):
            if reservation := world.regions[burst_place % (others + 1)].reserve(2):
                world.regions[burst_place % (others + 1)].settle(reservation, 2)
        world.advance(seconds)
    region, most = world.regions[place % (others + 1)], LARGEST[others]
    with pytest.raises(LimitsExceeded, match=f"can have {most} at most") as refused:
        region.try_to_reserve(most + 1)
    assert refused.value.retry_after is None
    assert admitted_after(world, region, max(1, most - lacking), 180.0) is not None


@pytest.mark.parametrize("others", [1, 2, 3])
@pytest.mark.parametrize("is_home", [True, False])
def test_the_largest_request_fits_beside_rare_requests_of_all_other_regions(others, is_home):
    """Its caller waits as it is told, in which the region has no other request, and keeps its share."""
    world = SharedRegions(others, tokens_per_minute=1_000)
    run(world, 60.0, *[3_000] * (others + 1))
    region = world.regions[not is_home]
    rare = [each for each in world.regions if each is not region]
    took = admitted_after(world, region, LARGEST[others], 180.0, rare)
    assert took is not None
    assert took < 150.0


def test_a_request_above_the_largest_share_asks_for_nothing():
    world = SharedRegions(3, tokens_per_minute=1_000)
    for _ in range(20):
        assert not world.regions[1].reserve(851)
        world.advance(1.0)
    assert world.regions[1].share.rates == 50
