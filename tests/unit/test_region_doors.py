"""Doors of other regions, as the setting of an edge names them."""

import pytest

from penstock.edge.config import EdgeConfig
from penstock.edge.regions.doors import parse_doors


def test_doors_are_listed_in_their_order():
    doors = parse_doors(("us=us.example:8444", "ap-1=127.0.0.1:1"))
    assert list(doors.items()) == [("us", "us.example:8444"), ("ap-1", "127.0.0.1:1")]


@pytest.mark.parametrize(
    ("doors", "text"),
    [
        (("us",), "'us' must be name=host:port"),
        (("=us.example:8444",), "must be name=host:port"),
        (("US=us.example:8444",), "lower-case letters"),
        (("us=us.example",), "the door of us"),
        (("us=a:1", "us=b:1"), "us is named twice"),
    ],
)
def test_a_door_that_cannot_be_used_is_refused(doors, text):
    with pytest.raises(ValueError, match=text):
        parse_doors(doors)


def test_an_edge_does_not_offer_requests_to_its_own_region():
    with pytest.raises(ValueError, match="regions: eu is the own region"):
        EdgeConfig(region="eu", regions=("us=127.0.0.1:1", "eu=127.0.0.1:2"))
    assert EdgeConfig(region="eu", regions=("us=127.0.0.1:1",)).region_doors == {"us": "127.0.0.1:1"}
