"""The frame coalescer: few frames are sent at once, bursts are sent together."""

import pytest

from fake_loop import FakeLoop
from penstock.edge.upstreams.settlements import COALESCE_WINDOW_S, MAX_IMMEDIATE_FRAMES, FrameCoalescer

CROWD = MAX_IMMEDIATE_FRAMES + 5


@pytest.fixture
def clockwork():
    return FakeLoop()


@pytest.fixture
def said():
    return []


@pytest.fixture
def gathered(clockwork, said):
    return FrameCoalescer(lambda frame: said.append((clockwork.now, frame)), clockwork)


def run_out(clockwork):
    while clockwork.fire_next():
        pass


def test_a_few_frames_per_window_are_sent_at_once(clockwork, said, gathered):
    for frame in range(MAX_IMMEDIATE_FRAMES):
        gathered.put(frame)
    assert said == [(0.0, frame) for frame in range(MAX_IMMEDIATE_FRAMES)]
    run_out(clockwork)
    gathered.put("later")
    assert said[MAX_IMMEDIATE_FRAMES:] == [(COALESCE_WINDOW_S, "later")]


def test_the_rest_of_a_burst_is_sent_together_and_in_order(clockwork, said, gathered):
    for frame in range(CROWD):
        gathered.put(frame)
    assert len(said) == MAX_IMMEDIATE_FRAMES
    run_out(clockwork)
    assert said == [(0.0 if frame < MAX_IMMEDIATE_FRAMES else COALESCE_WINDOW_S, frame) for frame in range(CROWD)]


def test_a_lasting_burst_is_sent_once_per_window(clockwork, said, gathered):
    for frame in range(CROWD):
        gathered.put(frame)
    clockwork.fire_next()
    for frame in range(CROWD, 2 * CROWD):
        gathered.put(frame)
    assert len(said) == CROWD
    run_out(clockwork)
    assert said[CROWD:] == [(2 * COALESCE_WINDOW_S, frame) for frame in range(CROWD, 2 * CROWD)]


def test_flush_sends_held_frames_once(clockwork, said, gathered):
    for frame in range(CROWD):
        gathered.put(frame)
    gathered.flush()
    assert said == [(0.0, frame) for frame in range(CROWD)]
    run_out(clockwork)
    assert len(said) == CROWD


def test_discarded_frames_are_not_sent(clockwork, said, gathered):
    for frame in range(CROWD):
        gathered.put(frame)
    gathered.discard()
    run_out(clockwork)
    assert len(said) == MAX_IMMEDIATE_FRAMES


def test_nothing_is_sent_after_close(clockwork, said, gathered):
    for frame in range(CROWD):
        gathered.put(frame)
    gathered.close()
    assert not clockwork.fire_next()
    assert len(said) == MAX_IMMEDIATE_FRAMES
