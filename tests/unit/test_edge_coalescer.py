"""The frame coalescer: few frames are sent at once, bursts are sent together."""

import pytest

from fake_loop import FakeLoop
from penstock.edge.lifecycle.effects import Settle
from penstock.edge.upstreams.settlements import COALESCE_WINDOW_S, MAX_IMMEDIATE_FRAMES, FrameCoalescer, Settlements

BURST_FRAMES = MAX_IMMEDIATE_FRAMES + 5


@pytest.fixture
def loop():
    return FakeLoop()


@pytest.fixture
def sent():
    return []


@pytest.fixture
def coalescer(loop, sent):
    return FrameCoalescer(lambda frame: sent.append((loop.now, frame)), loop)


def fire_all(loop):
    while loop.fire_next():
        pass


def test_a_few_frames_per_window_are_sent_at_once(loop, sent, coalescer):
    for frame in range(MAX_IMMEDIATE_FRAMES):
        coalescer.put(frame)
    assert sent == [(0.0, frame) for frame in range(MAX_IMMEDIATE_FRAMES)]
    fire_all(loop)
    coalescer.put("later")
    assert sent[MAX_IMMEDIATE_FRAMES:] == [(COALESCE_WINDOW_S, "later")]


def test_the_rest_of_a_burst_is_sent_together_and_in_order(loop, sent, coalescer):
    for frame in range(BURST_FRAMES):
        coalescer.put(frame)
    assert len(sent) == MAX_IMMEDIATE_FRAMES
    fire_all(loop)
    assert sent == [
        (0.0 if frame < MAX_IMMEDIATE_FRAMES else COALESCE_WINDOW_S, frame) for frame in range(BURST_FRAMES)
    ]


def test_a_lasting_burst_is_sent_once_per_window(loop, sent, coalescer):
    for frame in range(BURST_FRAMES):
        coalescer.put(frame)
    loop.fire_next()
    for frame in range(BURST_FRAMES, 2 * BURST_FRAMES):
        coalescer.put(frame)
    assert len(sent) == BURST_FRAMES
    fire_all(loop)
    assert sent[BURST_FRAMES:] == [(2 * COALESCE_WINDOW_S, frame) for frame in range(BURST_FRAMES, 2 * BURST_FRAMES)]


def test_flush_sends_held_frames_once(loop, sent, coalescer):
    for frame in range(BURST_FRAMES):
        coalescer.put(frame)
    coalescer.flush()
    assert sent == [(0.0, frame) for frame in range(BURST_FRAMES)]
    fire_all(loop)
    assert len(sent) == BURST_FRAMES


def test_discarded_frames_are_not_sent(loop, sent, coalescer):
    for frame in range(BURST_FRAMES):
        coalescer.put(frame)
    coalescer.discard(lambda frame: frame < BURST_FRAMES - 1)
    fire_all(loop)
    assert [frame for _, frame in sent] == [*range(MAX_IMMEDIATE_FRAMES), BURST_FRAMES - 1]


def test_held_settlements_of_a_partition_are_sent_once_to_its_new_owner_and_others_stay_held(loop):
    sent = []
    settlements = Settlements(lambda partition, frame: sent.append((partition, frame.settle.reservation_id)), loop)
    for number in range(MAX_IMMEDIATE_FRAMES):
        settlements.settle(f"sent {number}", Settle(0, 0, "cancelled"), 3)
    for name, partition in (("first", 1), ("second", 2), ("third", 1)):
        settlements.settle(name, Settle(0, 0, "cancelled"), partition)
    assert {partition for partition, _ in sent} == {3}
    settlements.resend_to_owners({1})
    assert sent[MAX_IMMEDIATE_FRAMES:] == [(1, "first"), (1, "third")]
    settlements.flush()
    assert sent[MAX_IMMEDIATE_FRAMES:] == [(1, "first"), (1, "third"), (2, "second")]


def test_nothing_is_sent_after_close(loop, sent, coalescer):
    for frame in range(BURST_FRAMES):
        coalescer.put(frame)
    coalescer.close()
    assert not loop.fire_next()
    assert len(sent) == MAX_IMMEDIATE_FRAMES
