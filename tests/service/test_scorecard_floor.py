"""The floor that refusals are held against, measured on a real process."""

from penstock.cli.scorecard.floor import measured_floor


async def test_each_empty_call_is_refused_and_timed():
    floor = await measured_floor(20)
    assert len(floor.waits) == 20
    assert min(floor.waits) > 0
    assert floor.cpu >= 0
