"""Ticks of the streams of one event loop."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.chassis.streams import ticks


class CountedStream:
    """A stream that counts its ticks."""

    def __init__(self):
        self.count = 0

    def on_tick(self):
        self.count += 1


async def test_streams_share_timers_and_no_callback_ticks_more_than_a_group(monkeypatch):
    monkeypatch.setattr(ticks, "TICK_S", 0.01)
    callbacks = []
    original = ticks._TickGroup._tick
    monkeypatch.setattr(ticks._TickGroup, "_tick", lambda group: callbacks.append(group) or original(group))
    streams = [CountedStream() for _ in range(2 * ticks.MAX_GROUP_STREAMS + 1)]
    started = [ticks.Ticks(each) for each in streams]
    for each in started:
        each.start()
    while min(each.count for each in streams) < 3:  # noqa: ASYNC110  # the event has no hook
        await asyncio.sleep(0.005)
    for each in started:
        each.stop()
    assert len(set(callbacks)) == 3
    assert max(len(each.streams) for each in set(callbacks)) <= ticks.MAX_GROUP_STREAMS
    counts = [each.count for each in streams]
    await asyncio.sleep(0.03)
    assert [each.count for each in streams] == counts


@pytest.mark.parametrize("early", [0.0, 0.000_9, 0.002])
async def test_a_timer_that_fires_early_does_not_tick_twice(monkeypatch, early):
    due, now = [], 1_000.0
    loop = asyncio.get_running_loop()
    group = ticks._TickGroup(0.0)
    monkeypatch.setattr(ticks.asyncio, "get_running_loop", lambda: fake)
    fake = SimpleNamespace(time=lambda: now, call_at=lambda at, _callback: due.append(at))
    stream = CountedStream()
    group.add(stream)
    for _ in range(100):
        now = due[-1] - early
        group._tick()
    monkeypatch.undo()
    assert asyncio.get_running_loop() is loop
    assert stream.count == 100
    assert due[-1] - due[0] == pytest.approx(100 * ticks.TICK_S)
