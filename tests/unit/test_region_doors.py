"""Doors of other regions, as the settings of edges and of routing list them."""

import pytest

from penstock.chassis.region_doors import parse_doors
from penstock.edge.config import EdgeConfig


def test_doors_are_listed_in_their_order():
    doors = parse_doors(("us=us.example:8444", "ap-1=127.0.0.1:1"), own="eu")
    assert list(doors.items()) == [("us", "us.example:8444"), ("ap-1", "127.0.0.1:1")]


@pytest.mark.parametrize(
    ("doors", "text"),
    [
        (("us",), "'us' must be NAME=HOST:PORT"),
        (("=us.example:8444",), "must be NAME=HOST:PORT"),
        (("US=us.example:8444",), "lower-case letters"),
        (("us=us.example",), "the door of us"),
        (("us=a:1", "us=b:1"), "us is listed twice"),
        (("eu=a:1",), "eu is the own region"),
    ],
)
def test_a_door_that_cannot_be_used_is_refused(doors, text):
    with pytest.raises(ValueError, match=text):
        parse_doors(doors, own="eu")


def test_an_edge_does_not_offer_requests_to_its_own_region():
    with pytest.raises(ValueError, match="regions: eu is the own region"):
        EdgeConfig(region="eu", regions=("us=127.0.0.1:1", "eu=127.0.0.1:2"))
    assert EdgeConfig(region="eu", regions=("us=127.0.0.1:1",)).region_doors == {"us": "127.0.0.1:1"}
