"""Spill policy: the regions that a rejected request is offered to, and what is remembered of their answers."""

import pytest

from penstock.edge.regions.spill import (
    DEFAULT_RETRY_AFTER_S,
    INITIAL_TRIP_S,
    MAX_REMEMBERED,
    UNANSWERED_RETRY_S,
    Offer,
    OfferClass,
    SpillPolicy,
)
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_STANDARD

KIND = OfferClass("m@d", PRIORITY_STANDARD)
OFFERED = Offer(KIND, tokens=100)
ALL = ("us", "ap", "sa")


def policy(*, up=ALL, **fields):
    found = SpillPolicy(ALL, **fields)
    for region in up:
        found.on_up(region)
    return found


def choose(found, now=0.0, allowed=ALL, offered=OFFERED, **fields):
    return found.choose(offered, allowed, now=now, **fields)


def test_regions_are_asked_in_order_of_preference_and_two_at_most():
    found = policy()
    assert choose(found) == "us"
    assert choose(found, tried=("us",)) == "ap"
    assert choose(found, tried=("us", "ap")) is None


@pytest.mark.parametrize(("allowed", "chosen"), [((), "us"), (("sa",), "sa"), (("eu", "ap"), "ap"), (("eu",), None)])
def test_a_request_leaves_only_for_regions_that_its_tenant_is_known_to_allow(allowed, chosen):
    assert choose(policy(), allowed=allowed) == chosen


def test_a_region_whose_stream_is_down_is_offered_nothing():
    found = policy(up=("ap",))
    assert choose(found) == "ap"
    found.on_down("ap")
    assert choose(found) is None
    found.on_up("us")
    assert choose(found) == "us"


def test_classes_that_stay_are_not_offered():
    found = policy(stay=(PRIORITY_BATCH,))
    assert choose(found, offered=Offer(OfferClass("m@d", PRIORITY_BATCH), 100)) is None
    assert choose(found) == "us"


def test_a_rejection_holds_for_its_model_and_class_and_the_time_that_it_names():
    found = policy()
    found.on_rejected("us", OFFERED, 2.0, now=10.0)
    assert choose(found, now=11.9) == "ap"
    assert choose(found, now=12.0) == "us"
    for other in (OfferClass("n@d", PRIORITY_STANDARD), OfferClass("m@d", PRIORITY_BATCH)):
        assert choose(found, now=10.0, offered=Offer(other, 100)) == "us"


def test_a_rejection_holds_for_requests_that_are_at_least_half_as_large():
    found = policy(up=("us",))
    found.on_rejected("us", OFFERED, 2.0, now=10.0)
    assert [choose(found, now=11.0, offered=Offer(KIND, tokens)) for tokens in (49, 50, 101)] == ["us", None, None]
    found.on_rejected("us", Offer(KIND, 10), 2.0, now=11.0)
    assert [choose(found, now=11.0, offered=Offer(KIND, tokens)) for tokens in (4, 5, 99)] == ["us", None, None]


def test_the_rejection_of_a_request_that_has_waited_at_home_says_nothing_of_others():
    found = policy(up=("us",))
    found.on_rejected("us", OFFERED._replace(waited=0.5), 2.0, now=10.0)
    assert choose(found, now=10.0) == "us"


@pytest.mark.parametrize(("retry_after", "held_s"), [(None, DEFAULT_RETRY_AFTER_S), (1e9, 30.0), (0.0, 0.05)])
def test_the_time_of_a_rejection_is_bounded(retry_after, held_s):
    found = policy(up=("us",))
    found.on_rejected("us", OFFERED, retry_after, now=10.0)
    assert choose(found, now=10.0 + held_s - 0.001) is None
    assert choose(found, now=10.0 + held_s) == "us"


def test_a_region_that_does_not_answer_is_not_asked_again_at_once():
    found = policy(up=("us",))
    found.on_unanswered("us", KIND, now=10.0)
    assert not found.can_spill(Offer(KIND, 1), ALL, 10.0)
    assert not found.can_spill(OFFERED, ALL, 10.0)
    assert found.can_spill(OFFERED, ALL, 10.0 + UNANSWERED_RETRY_S)


def test_a_new_stream_may_lead_to_another_edge_so_that_rejections_are_forgotten():
    found = policy(up=("us",))
    found.on_rejected("us", OFFERED, 20.0, now=10.0)
    found.on_down("us")
    found.on_up("us")
    assert choose(found, now=10.0) == "us"


def test_as_many_rejections_are_remembered_as_may_be():
    found = policy(up=("us",))
    for number in range(MAX_REMEMBERED + 1):
        found.on_rejected("us", Offer(OfferClass(f"m{number}@d", 1), 1), 20.0, now=10.0)
    assert choose(found, now=10.0, offered=Offer(OfferClass("m0@d", 1), 1)) == "us"
    assert choose(found, now=10.0, offered=Offer(OfferClass("m1@d", 1), 1)) is None


def test_the_trip_follows_the_fastest_answers_and_must_fit_the_deadline():
    found = policy(up=("us",))
    assert found.trip("us") == INITIAL_TRIP_S
    found.on_answer("us", 0.02)
    assert found.trip("us") == 0.02
    found.on_answer("us", 0.12)
    assert found.trip("us") == pytest.approx(0.03)
    assert choose(found, time_left=0.03) is None
    assert choose(found, time_left=0.04) == "us"


def test_a_drained_region_is_offered_nothing_of_any_class_for_a_time():
    found = policy()
    found.on_drained("us", 5.0, now=10.0)
    assert choose(found, now=14.9, offered=Offer(OfferClass("other@d", PRIORITY_BATCH), tokens=1)) == "ap"
    assert choose(found, now=15.0) == "us"
    found.on_drained("us", None, now=20.0)
    assert choose(found, now=20.0 + DEFAULT_RETRY_AFTER_S - 0.1) == "ap"
    found.on_up("us")
    assert choose(found, now=20.1) == "us", "an edge that accepts the stream is not drained"
