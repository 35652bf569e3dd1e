"""The rejection floor, measured on a real process."""

from penstock.proofs.live.overload.rejection_floor import measure_floors
from penstock.proofs.live.overload.surge_lines import APIS


async def test_a_rejection_by_each_api_is_timed():
    floors = await measure_floors(20)
    assert floors.keys() == APIS.keys()
    for floor in floors.values():
        assert len(floor.latencies_s) == 20
        assert min(floor.latencies_s) > 0
        assert floor.cpu_s >= 0
