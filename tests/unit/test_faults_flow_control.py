"""Flow control of the simulated network: a writer stops at its window, and continues after reads."""

import asyncio

import pytest

from penstock.faults.grpc.flow_control import FlowControlWindow
from penstock.faults.world.world import World

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

WINDOW_BYTES = 100


@pytest.fixture
def world():
    made = World(1)
    yield made
    asyncio._set_running_loop(None)  # a world has set it


def writing(world, sizes):
    """A writer of messages of `sizes`; what it has got through, and its window."""
    loop, through = world.add_loop("a"), []
    window = FlowControlWindow(WINDOW_BYTES, loop)

    async def write():
        for size in sizes:
            await window.reserve(size)
            through.append(size)

    with world.running_as(loop):
        loop.create_task(write())
    world.settle()
    return window, through


def test_a_writer_waits_for_its_reader_once_its_window_is_full(world):
    window, through = writing(world, [60, 60, 60])
    assert through == [60]
    assert window.full_since is not None
    window.on_window_update(60)
    world.settle()
    assert through == [60, 60]
    window.on_window_update(60)
    world.settle()
    assert through == [60, 60, 60]
    assert window.full_since is None


def test_the_start_of_a_full_window_is_kept_while_it_stays_full(world):
    window, _ = writing(world, [150])
    since = window.full_since
    world.run(lambda: False, limit=5.0)
    window.on_window_update(10)
    world.settle()
    assert window.full_since == since


def test_a_reader_acknowledges_halves_of_the_window_without_losing_a_byte(world):
    window, _ = writing(world, [])
    acknowledged = [window.on_read(20) for _ in range(6)]
    assert acknowledged == [0, 0, 60, 0, 0, 60]
