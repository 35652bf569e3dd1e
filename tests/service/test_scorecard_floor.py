"""The floors that refusals are held against, measured on a real process."""

from penstock.proofs.live.refusal_floor import measured_floors
from penstock.proofs.testbed.drivers import WAYS


async def test_each_way_of_being_refused_is_timed():
    floors = await measured_floors(20)
    assert floors.keys() == WAYS.keys()
    for floor in floors.values():
        assert len(floor.waits) == 20
        assert min(floor.waits) > 0
        assert floor.cpu >= 0
