"""The scheduler of a world: its clock, the order of callbacks, and halted loops."""

import asyncio

import pytest

from penstock.faults.world.world import MAX_CALLBACKS, Livelock, World

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")

TIME_LIMIT_S = 10.0


def running(world, main, name="a"):
    loop = world.add_loop(name)
    with world.running_as(loop):
        return loop, loop.create_task(main())


@pytest.fixture
def world():
    world = World(1)
    yield world
    asyncio._set_running_loop(None)  # a world has set it


def test_the_clock_jumps_to_the_next_timer(world):
    async def main():
        await asyncio.sleep(3.0)
        return asyncio.get_running_loop().time()

    _, task = running(world, main)
    assert world.run(task.done, limit=TIME_LIMIT_S)
    assert 3.0 <= task.result() < 3.001
    assert world.callbacks < 10


def test_a_world_without_events_ends_at_its_limit(world):
    _, task = running(world, lambda: asyncio.Event().wait())
    assert not world.run(task.done, limit=TIME_LIMIT_S)
    assert world.now == TIME_LIMIT_S


def test_a_process_that_never_waits_stops_its_world(world):
    def again(loop):
        loop.call_soon(again, loop)

    loop = world.add_loop("spinner")
    again(loop)
    with pytest.raises(Livelock, match="spinner has more"):
        world.run(lambda: False, limit=TIME_LIMIT_S)
    assert world.callbacks == MAX_CALLBACKS


def test_callbacks_of_one_loop_keep_their_order_and_those_of_several_are_shuffled_by_the_seed():
    def order(seed):
        world, calls = World(seed), []
        loops = [world.add_loop(name) for name in "ab"]
        for number in range(8):
            for loop in loops:
                loop.call_soon(calls.append, (loop.name, number))
        world.settle()
        for name in "ab":
            assert [each for each in calls if each[0] == name] == [(name, number) for number in range(8)]
        return calls

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


def test_a_halted_loop_runs_nothing_and_its_timers_fire_after_the_resume(world):
    times = []

    async def main():
        await asyncio.sleep(1.0)
        times.append(asyncio.get_running_loop().time())

    loop, task = running(world, main)
    world.settle()
    world.halt(loop)
    world.run(lambda: False, limit=5.0)
    assert times == []
    world.resume(loop)
    assert world.run(task.done, limit=TIME_LIMIT_S)
    assert times[0] >= 5.0


def test_callbacks_take_time_so_that_an_early_timer_does_not_fire_for_ever(world):
    """Unix time has the same property: its fractions are coarser than those of the loop's clock."""
    times = []

    def poll(loop):
        if loop.time() < 2.0:
            loop.call_later(0.0, poll, loop)
        else:
            times.append(loop.time())

    loop = world.add_loop("a")
    loop.call_later(1.9999, poll, loop)
    assert world.run(lambda: bool(times), limit=TIME_LIMIT_S)


def test_tasks_are_cancelled_in_the_order_of_their_creation(world):
    """A TaskGroup keeps its tasks in a set, whose order would be that of their addresses."""
    cancelled = []

    async def child(number):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(number)

    async def main():
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(child(number))
            await asyncio.sleep(0.0)
            raise ValueError

    _, task = running(world, main)
    world.run(task.done, limit=TIME_LIMIT_S)
    assert isinstance(task.exception(), ExceptionGroup)
    assert cancelled == list(range(20))


def test_uncaught_exceptions_are_kept(world):
    loop = world.add_loop("a")
    loop.call_soon(lambda: 1 / 0)
    world.settle()
    assert [type(each["exception"]) for each in loop.failures] == [ZeroDivisionError]
