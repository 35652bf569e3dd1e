"""The clocks of a world's hosts: each converts the world's time, and timers fire by the clock of their host."""

import asyncio
import random
import time

import pytest

from penstock.faults.mutations import plan_world
from penstock.faults.world.host_clock import EPOCH_UNIX_S, MAX_DRIFT, MAX_OFFSET_S, HostClock
from penstock.faults.world.world import World

pytestmark = pytest.mark.usefixtures("_collect_finished_worlds")


@pytest.fixture
def world():
    world = World(1)
    yield world
    asyncio._set_running_loop(None)  # a world has set it


def test_a_host_converts_the_time_of_the_world():
    clock = HostClock(offset_s=-5.0, uptime_s=100.0, rate=1.01)
    assert clock.unix(200.0) == pytest.approx(EPOCH_UNIX_S - 5.0 + 202.0)
    assert clock.monotonic(200.0) == pytest.approx(302.0)
    assert clock.world_time(clock.monotonic(200.0)) == pytest.approx(200.0)


def test_a_step_moves_unix_time_alone():
    clock = HostClock(uptime_s=7.0)
    clock.step(601.0)
    assert (clock.unix(1.0), clock.monotonic(1.0)) == (EPOCH_UNIX_S + 602.0, 8.0)


def test_random_clocks_stay_within_their_limits():
    clocks = [HostClock.random(random.Random(seed)) for seed in range(200)]
    assert all(abs(each.offset_s) <= MAX_OFFSET_S and abs(each.rate - 1.0) <= MAX_DRIFT for each in clocks)
    assert any(abs(each.offset_s) > 600.0 for each in clocks)
    assert any(each.rate != 1.0 for each in clocks)


def test_a_timer_fires_by_the_clock_of_its_host(world):
    world.clocks["fast"] = HostClock(uptime_s=50.0, rate=2.0)

    async def main():
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(4.0)
        return world.now, asyncio.get_running_loop().time() - begun

    found = []
    for name in ("true", "fast"):
        loop = world.add_loop(name)
        with world.running_as(loop):
            found.append(loop.create_task(main()))
    assert world.run(lambda: all(each.done() for each in found), limit=10.0)
    assert [task.result()[0] for task in found] == pytest.approx([4.0, 2.0], abs=1e-3)
    assert [task.result()[1] for task in found] == pytest.approx([4.0, 4.0], abs=1e-3)


def test_an_engine_has_the_clock_of_its_worker(world):
    world.clocks["worker0"] = HostClock(offset_s=9.0)
    worker, engine, other = (world.add_loop(name) for name in ("worker0", "worker0.engine", "worker1"))
    assert engine.clock is worker.clock
    assert other.clock == HostClock()


def test_each_process_sees_the_time_of_its_host(world, monkeypatch):
    monkeypatch.setattr(time, "time", world.unix_time)
    world.clocks["late"] = HostClock(offset_s=-3_600.0)
    with world.running_as(world.add_loop("late")):
        assert time.time() == EPOCH_UNIX_S - 3_600.0
    with world.running_as(world.add_loop("true")):
        assert time.time() == EPOCH_UNIX_S


def test_most_worlds_have_clocks_of_their_own_and_some_step():
    plans = [plan_world(seed) for seed in range(200)]
    assert 0.5 < sum(each.has_own_clocks for each in plans) / len(plans) < 0.9
    assert any(abs(step.seconds) == 600.0 for each in plans for step in each.clock_steps)
