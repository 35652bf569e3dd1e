"""Frames are sent in order, at once under low load and bundled under high load."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock.chassis.streams import outbox as module
from penstock.chassis.streams.outbox import MAX_BUNDLE_FRAMES, Outbox
from penstock.v1.inference_pb2 import SessionCancel, SessionRequest


def frame(number):
    return SessionRequest(cancel=SessionCancel(handle=number))


def handles(message):
    return [each.cancel.handle for each in message.more or (message,)]


class FakeSleep:
    """A fake sleep that lasts until the test ends it."""

    def __init__(self):
        self.durations_s = []
        self.ended = asyncio.Event()

    async def sleep(self, seconds):
        self.durations_s.append(seconds)
        await self.ended.wait()


@asynccontextmanager
async def running_outbox(*, can_bundle=True):
    outbox, messages = Outbox(capacity=1_000), []
    outbox.put(frame(0))

    async def write(message):
        messages.append(handles(message))

    task = asyncio.create_task(outbox.write_all(write, can_bundle=lambda: can_bundle))
    await outbox.written.wait()
    try:
        yield outbox, messages
    finally:
        task.cancel()


@pytest.fixture
def sleeps(monkeypatch):
    sleeps = FakeSleep()
    monkeypatch.setattr(module, "BUNDLE_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(module.asyncio, "sleep", sleeps.sleep)
    return sleeps


async def run_loop_turns(count=5):
    loop = asyncio.get_running_loop()
    for _ in range(count):
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned


async def test_a_frame_is_sent_at_once_and_those_that_follow_closely_are_bundled(sleeps):
    async with running_outbox() as (outbox, messages):
        outbox.put(frame(1))
        await outbox.written.wait()
        assert messages == [[0], [1]]
        for number in (2, 3, 4):
            outbox.put(frame(number))
            await run_loop_turns()
        assert messages == [[0], [1]]
        assert 0 < sleeps.durations_s[0] <= module.BUNDLE_INTERVAL_S
        sleeps.ended.set()
        await outbox.written.wait()
        assert messages == [[0], [1], [2, 3, 4]]


async def test_a_full_message_is_sent_without_a_pause(sleeps):
    async with running_outbox() as (outbox, messages):
        outbox.put(frame(1))
        await outbox.written.wait()
        for number in range(2, 2 + MAX_BUNDLE_FRAMES):
            outbox.put(frame(number))
        await outbox.written.wait()
        assert messages[2:] == [list(range(2, 2 + MAX_BUNDLE_FRAMES))]
        assert sleeps.durations_s == []


async def test_without_bundles_each_frame_is_sent_alone_and_at_once(sleeps):
    async with running_outbox(can_bundle=False) as (outbox, messages):
        for number in (1, 2, 3):
            outbox.put(frame(number))
        await outbox.written.wait()
        assert messages == [[0], [1], [2], [3]]
        assert sleeps.durations_s == []


async def test_a_frame_that_may_be_delayed_travels_with_the_next_frame_in_order():
    async with running_outbox() as (outbox, messages):
        outbox.put(frame(1), max_delay_s=3_600.0)
        outbox.put(frame(2), max_delay_s=3_600.0)
        await run_loop_turns()
        assert messages == [[0]]
        outbox.put(frame(3))
        await outbox.written.wait()
        assert messages == [[0], [1, 2, 3]]


async def test_a_frame_that_is_put_during_a_write_may_still_be_delayed():
    outbox, messages, write_ends = Outbox(capacity=1_000), [], asyncio.Event()
    outbox.put(frame(0))

    async def write(message):
        messages.append(handles(message))
        await write_ends.wait()

    task = asyncio.create_task(outbox.write_all(write, can_bundle=lambda: True))
    await run_loop_turns()
    outbox.put(frame(1), max_delay_s=3_600.0)
    write_ends.set()
    await run_loop_turns()
    assert messages == [[0]]
    assert not outbox.written.is_set()
    task.cancel()


async def test_the_shortest_delay_holds_for_all_delayed_frames_and_has_the_only_timer(monkeypatch):
    async with running_outbox() as (outbox, messages):
        loop, timers = asyncio.get_running_loop(), []
        call_at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda *args: timers.append(call_at(*args)) or timers[-1])
        outbox.put(frame(1), max_delay_s=3_600.0)
        outbox.put(frame(2), max_delay_s=0.001)
        outbox.put(frame(3), max_delay_s=3_600.0)
        await outbox.written.wait()
        assert messages == [[0], [1, 2, 3]]
        assert [timer.cancelled() for timer in timers] == [True, True]


async def test_expedite_makes_delayed_frames_due():
    async with running_outbox() as (outbox, messages):
        outbox.put(frame(1), max_delay_s=3_600.0)
        outbox.expedite()
        await outbox.written.wait()
        assert messages == [[0], [1]]


async def test_the_size_of_waiting_frames_is_that_of_their_messages():
    outbox = Outbox(8)
    assert outbox.unwritten_bytes() == 0
    for number in (1, 2):
        outbox.put(frame(number))
    assert outbox.unwritten_bytes() == frame(1).ByteSize() + frame(2).ByteSize()
