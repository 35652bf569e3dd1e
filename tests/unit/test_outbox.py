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


class Pauses:
    """A fake sleep that lasts until the test ends it."""

    def __init__(self):
        self.asked = []
        self.over = asyncio.Event()

    async def sleep(self, seconds):
        self.asked.append(seconds)
        await self.over.wait()


@asynccontextmanager
async def writing(*, can_bundle=True):
    box, messages = Outbox(capacity=1_000), []
    box.put(frame(0))

    async def write(message):
        messages.append(handles(message))

    task = asyncio.create_task(box.write_all(write, can_bundle=lambda: can_bundle))
    await box.written.wait()
    try:
        yield box, messages
    finally:
        task.cancel()


@pytest.fixture
def pauses(monkeypatch):
    found = Pauses()
    monkeypatch.setattr(module, "BUNDLE_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(module.asyncio, "sleep", found.sleep)
    return found


async def turns(count=5):
    loop = asyncio.get_running_loop()
    for _ in range(count):
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned


async def test_a_frame_is_sent_at_once_and_those_that_follow_closely_are_bundled(pauses):
    async with writing() as (box, messages):
        box.put(frame(1))
        await box.written.wait()
        assert messages == [[0], [1]]
        for number in (2, 3, 4):
            box.put(frame(number))
            await turns()
        assert messages == [[0], [1]]
        assert 0 < pauses.asked[0] <= module.BUNDLE_INTERVAL_S
        pauses.over.set()
        await box.written.wait()
        assert messages == [[0], [1], [2, 3, 4]]


async def test_a_message_that_is_full_waits_for_no_gap(pauses):
    async with writing() as (box, messages):
        box.put(frame(1))
        await box.written.wait()
        for number in range(2, 2 + MAX_BUNDLE_FRAMES):
            box.put(frame(number))
        await box.written.wait()
        assert messages[2:] == [list(range(2, 2 + MAX_BUNDLE_FRAMES))]
        assert pauses.asked == []


async def test_without_bundles_each_frame_is_sent_alone_and_at_once(pauses):
    async with writing(can_bundle=False) as (box, messages):
        for number in (1, 2, 3):
            box.put(frame(number))
        await box.written.wait()
        assert messages == [[0], [1], [2], [3]]
        assert pauses.asked == []
