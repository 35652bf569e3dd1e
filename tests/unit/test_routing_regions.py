"""Regions, the operators' state of them, and the orders in which a call tries them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.edges.edge_spec import Address
from penstock.routing.regions.region_spec import Region, parse_regions
from penstock.routing.regions.region_state import RegionState, RegionStateInvalid
from penstock.routing.regions.traffic_plan import TOTAL, TrafficPlan, all_orders

STEP_S = 10.0
NAMES = ("eu", "us", "ap")
NORMAL = RegionState()


def plan(state=NORMAL, *, own="eu", others=("us", "ap"), now=1_000.0):
    return TrafficPlan.of(own, others, state, now, STEP_S)


def test_other_regions_are_listed_in_order_of_preference():
    listed = parse_regions(["us=us.example:7443", "ap=10.0.0.1:7443"], own="eu")
    assert listed == (Region("us", Address("us.example", 7443)), Region("ap", Address("10.0.0.1", 7443)))


@pytest.mark.parametrize(
    "items",
    [["us"], ["us=host"], ["US=host:1"], ["eu=host:1"], ["us=a:1", "us=b:1"], [f"r{each}=a:1" for each in range(4)]],
)
def test_a_list_of_regions_with_a_mistake_is_refused(items):
    with pytest.raises(ValueError, match=r"region|host:port"):
        parse_regions(items, own="eu")


def test_a_call_stays_at_home_and_tries_the_allowed_regions_in_order_if_home_is_dead():
    assert plan().orders(NAMES) == {("eu", "us", "ap"): TOTAL}
    assert plan().orders(("eu", "ap")) == {("eu", "ap"): TOTAL}
    assert plan().orders(("eu",)) == {("eu",): TOTAL}


def test_the_sets_that_a_tenant_may_allow_have_the_own_region_and_no_drained_one():
    assert list(plan().allowed_sets()) == [("eu", "us", "ap"), ("eu", "us"), ("eu", "ap"), ("eu",)]
    assert list(plan(NORMAL.with_drained("us")).allowed_sets()) == [("eu", "ap"), ("eu",)]
    assert list(plan(NORMAL.with_drained("eu")).allowed_sets()) == list(plan().allowed_sets())


def test_a_drained_own_region_is_the_last_resort_and_another_drained_region_gets_nothing():
    assert plan(NORMAL.with_drained("eu")).orders(NAMES) == {("us", "ap", "eu"): TOTAL}
    assert plan(NORMAL.with_drained("eu")).orders(("eu",)) == {("eu",): TOTAL}
    assert plan(NORMAL.with_drained("us")).orders(NAMES) == {("eu", "ap"): TOTAL}


def test_a_weight_sends_a_share_of_the_calls_that_may_leave_and_they_come_back_first():
    weighted = plan(RegionState(weights={"us": 20, "ap": 5}))
    assert weighted.orders(NAMES) == {("eu", "us", "ap"): 7500, ("us", "eu", "ap"): 2000, ("ap", "eu", "us"): 500}
    assert weighted.orders(("eu", "ap")) == {("eu", "ap"): 9500, ("ap", "eu"): 500}
    assert weighted.first_shares() == {"eu": 75.0, "us": 20.0, "ap": 5.0}


def test_a_restored_region_returns_in_steps():
    drained = NORMAL.with_drained("eu")
    restored = drained.with_restored("eu", 1_000.0)
    shares = [plan(restored, now=1_000.0 + at).first_shares()["eu"] for at in (-5.0, 0.0, 9.9, 10.0, 25.0, 30.0, 1e9)]
    assert shares == [25.0, 25.0, 25.0, 50.0, 75.0, 100.0, 100.0]
    assert restored.with_restored("eu", 2_000.0) == restored
    assert restored.with_drained("eu") == drained


def test_weights_above_all_calls_are_refused():
    state = NORMAL.with_weight("us", 60)
    assert state.with_weight("us", 0) == NORMAL
    for region, percent in (("ap", 41), ("us", 101), ("us", -1)):
        with pytest.raises(ValueError, match="at most 100 %"):
            state.with_weight(region, percent)


states = st.builds(
    RegionState,
    drained=st.frozensets(st.sampled_from(NAMES)),
    restore_times=st.dictionaries(st.sampled_from(NAMES), st.floats(0, 2e9)),
    weights=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 33)),
)


@given(state=states)
def test_a_state_survives_its_text(state):
    assert RegionState.parse(state.text()) == state


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"drian": []}', '{"drained": "us"}', '{"drained": ["US"]}', '{"weights": {"us": 1.5}}'),
        *('{"weights": {"us": 101}}', '{"weights": ["us"]}', '{"restore_times": {"us": "now"}}'),
        '{"restore_times": {"us": NaN}}',
    ],
)
def test_a_text_that_is_no_state_is_refused(text):
    with pytest.raises(RegionStateInvalid):
        RegionState.parse(text)


@given(state=states, now=st.floats(0, 2e9), others=st.sets(st.sampled_from(("us", "ap"))))
def test_no_call_leaves_the_regions_that_its_tenant_allows_and_each_order_has_a_cluster(state, now, others):
    allowed = {"eu", *others}
    orders = plan(state, now=now).orders(allowed)
    assert sum(orders.values()) == TOTAL
    for order in orders:
        assert set(order) <= allowed
        assert len(order) == len(set(order))
        assert len(order) == 1 or order in all_orders("eu", ("us", "ap"))
    assert {"eu"} <= set.intersection(*map(set, orders))
