"""Settings of an edge about other regions: their doors in order of preference, and the classes that stay."""

import pytest

from penstock.edge.config import EdgeConfig
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_STANDARD


def test_doors_are_in_order_of_preference_and_make_requests_leave():
    config = EdgeConfig(regions=("us=us.example:8443", "ap-1=10.0.0.1:8443"), spill_stay=("standard", "batch"))
    assert list(config.region_doors.items()) == [("us", "us.example:8443"), ("ap-1", "10.0.0.1:8443")]
    assert config.staying_priorities == {PRIORITY_STANDARD, PRIORITY_BATCH}
    assert config.lifecycle_limits.spills
    assert not EdgeConfig().lifecycle_limits.spills


@pytest.mark.parametrize("region", ["us", "us=", "us=host", "=host:1", "US=host:1", "u_s=host:1", "us=host:99999"])
def test_a_door_without_a_name_or_an_address_stops_the_start(region):
    with pytest.raises(ValueError, match="regions"):
        EdgeConfig(regions=(region,))


def test_a_region_that_is_named_twice_and_an_unknown_class_stop_the_start():
    with pytest.raises(ValueError, match="twice"):
        EdgeConfig(regions=("us=a:1", "us=b:1"))
    with pytest.raises(ValueError, match="spill_stay names urgent"):
        EdgeConfig(spill_stay=("urgent",))
