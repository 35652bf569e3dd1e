"""Ticks of a service at work and at rest."""

import asyncio

import pytest

from penstock.chassis import pacing
from penstock.chassis.pacing import TickPacer
from penstock.queue.models.model_queue import MAX_POOL_STATS_AGE_S
from penstock.queue.prediction.prefill_backlog import MAX_CAPACITY_AGE_S


@pytest.fixture
def waits(monkeypatch):
    """The waits of a pacer in s, which end at once; a rest ends at its time limit."""
    done = []

    async def sleep(seconds):
        done.append(seconds)

    monkeypatch.setattr(pacing.asyncio, "sleep", sleep)
    monkeypatch.setattr(pacing, "REST_INTERVAL_S", 0.01)
    return done


async def test_a_service_at_work_ticks_at_its_interval(waits):
    pacer = TickPacer(0.05)
    for _ in range(100):
        await pacer.wait(is_idle=False)
    assert waits == [0.05] * 100


async def test_a_service_rests_after_a_second_without_work(waits):
    pacer = TickPacer(0.05)
    for _ in range(100):
        await pacer.wait(is_idle=True)
    assert len(waits) == round(pacing.REST_AFTER_S / 0.05)


def test_statistics_of_a_scheduler_at_rest_do_not_lapse_between_two_ticks():
    assert 2 * pacing.REST_INTERVAL_S <= MAX_CAPACITY_AGE_S
    assert 2 * pacing.REST_INTERVAL_S <= MAX_POOL_STATS_AGE_S


async def test_an_event_ends_the_rest_and_ticks_are_frequent_after_it(monkeypatch):
    monkeypatch.setattr(pacing, "REST_AFTER_S", 0.0)
    monkeypatch.setattr(pacing, "REST_INTERVAL_S", 3_600.0)
    pacer = TickPacer(0.001)
    resting = asyncio.create_task(pacer.wait(is_idle=True))
    await asyncio.sleep(0.01)
    assert not resting.done()
    pacer.on_event()
    await asyncio.wait_for(resting, 10)
    monkeypatch.setattr(pacing, "REST_AFTER_S", 1.0)
    await asyncio.wait_for(pacer.wait(is_idle=True), 10)
