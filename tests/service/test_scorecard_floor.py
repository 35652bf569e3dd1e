"""The floors that refusals are held against, measured on a real process."""

from penstock.proofs.live.rejection_floor import measure_floors
from penstock.proofs.testbed.drivers import DRIVERS


async def test_each_way_of_being_refused_is_timed():
    floors = await measure_floors(20)
    assert floors.keys() == DRIVERS.keys()
    for floor in floors.values():
        assert len(floor.latencies_s) == 20
        assert min(floor.latencies_s) > 0
        assert floor.cpu_s >= 0
