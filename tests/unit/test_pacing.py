"""The timer of a service's ticks, and the intervals that the statistics of a scheduler at rest bound."""

import asyncio
import math
from unittest.mock import Mock

import uvloop

from penstock.chassis import pacing
from penstock.chassis.pacing import TickTimer
from penstock.chassis.streams.ticks import TICK_S, Ticks, delay_to_tick
from penstock.queue.models.model_queue import MAX_POOL_STATS_AGE_S
from penstock.queue.prediction.prefill_backlog import MAX_CAPACITY_AGE_S
from penstock.scheduler.dispatcher import REST_TICK_INTERVAL_S


def record_timers(monkeypatch):
    """Return a list that gets the time of each timer that is created from now on, in s of the loop.

    It is no fixture, because the bound of a test (tests/conftest.py) is a timer, too.
    """
    created = []
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def record(when, *args, **options):
        created.append(when)
        return call_at(when, *args, **options)

    monkeypatch.setattr(loop, "call_at", record)
    return created


async def test_a_later_due_time_creates_no_timer(monkeypatch):
    timers = record_timers(monkeypatch)
    timer = TickTimer()
    for delay_s in (50.0, 60.0, 50.0):
        timer.expedite(delay_s)
    assert len(timers) == 1


async def test_an_equal_due_time_on_a_slightly_different_clock_creates_no_timer(monkeypatch):
    timers = record_timers(monkeypatch)
    timer = TickTimer()
    timer.expedite(50.0)
    timer.expedite(50.0 - pacing.MIN_ADVANCE_S / 2)
    assert len(timers) == 1


async def test_an_earlier_due_time_replaces_the_timer(monkeypatch):
    timers = record_timers(monkeypatch)
    timer = TickTimer()
    timer.expedite(3_600.0)
    timer.expedite(0.0)
    assert len(timers) == 2
    await asyncio.wait_for(timer.wait(), 10)


async def test_a_passed_due_time_ticks_once():
    timer = TickTimer()
    timer.expedite(-math.inf)
    timer.expedite(0.0)
    await asyncio.wait_for(timer.wait(), 10)
    waiting = asyncio.create_task(timer.wait())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    timer.expedite(0.0)
    await asyncio.wait_for(waiting, 10)


def test_a_passed_due_time_can_be_repeated_on_the_loop_of_services():
    """This loop gives a plain handle, which has no time, for a timer that is due at once."""

    async def tick():
        timer = TickTimer()
        for delay_s in (0.0, -1.0, 1.0):
            timer.expedite(delay_s)
        await asyncio.wait_for(timer.wait(), 10)

    uvloop.run(tick())


async def test_periodic_work_coincides_with_the_ticks_of_streams(monkeypatch):
    timers = record_timers(monkeypatch)
    TickTimer().expedite(1.0)
    ticks = Ticks(Mock())
    ticks.start()
    ticks.stop()
    resting_until, first_tick = timers
    assert round((resting_until - first_tick) / TICK_S, 3) in (1, 2)
    now = asyncio.get_running_loop().time()
    assert now + 1.0 - TICK_S <= resting_until <= now + 1.0


async def test_work_that_is_due_before_the_next_tick_is_not_delayed_to_it():
    assert delay_to_tick(TICK_S / 2) == TICK_S / 2


def test_statistics_of_a_scheduler_at_rest_do_not_lapse_between_two_ticks():
    assert 2 * REST_TICK_INTERVAL_S <= MAX_CAPACITY_AGE_S
    assert 2 * REST_TICK_INTERVAL_S <= MAX_POOL_STATS_AGE_S
