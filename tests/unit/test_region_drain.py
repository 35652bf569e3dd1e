"""A drained region at an edge: when its sessions move, and what changes the state."""

import asyncio
from itertools import pairwise

import pytest

from penstock.edge.regions.drain import MOVE_AGAIN_S, MOVE_DELAYS_S, RegionDrain, move_at

DRAINED_AT = 100.0
FIRST, LAST = MOVE_DELAYS_S


def test_sessions_move_after_the_proxies_know_of_the_drain_and_not_all_at_once():
    moves = sorted(move_at(number, opened_at=0.0, drained_at=DRAINED_AT) - DRAINED_AT for number in range(1_000))
    assert moves[0] >= FIRST
    assert moves[-1] < LAST
    assert max(later - earlier for earlier, later in pairwise(moves)) < 3 * (LAST - FIRST) / 1_000


@pytest.mark.parametrize(
    ("opened_after", "moves_after"), [(-50.0, FIRST), (FIRST, FIRST), (FIRST + 0.1, FIRST + 0.1 + MOVE_AGAIN_S)]
)
def test_a_session_of_the_last_resort_stays_for_a_time(opened_after, moves_after):
    found = move_at(0, opened_at=DRAINED_AT + opened_after, drained_at=DRAINED_AT)
    assert found == pytest.approx(DRAINED_AT + moves_after)


async def test_a_state_that_is_reported_again_changes_nothing():
    drain = RegionDrain(lambda: DRAINED_AT)
    assert not drain.set(is_on=False)
    assert drain.set(is_on=True)
    assert not drain.set(is_on=True)
    assert drain.is_on
    assert drain.set(is_on=False)
    assert not drain.is_on


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time


async def test_a_session_does_not_move_in_a_drain_that_ended_before_its_time():
    clock = Clock()
    drain = RegionDrain(clock.now)
    moving = asyncio.create_task(drain.wait_move())
    await asyncio.sleep(0)
    drain.set(is_on=True)
    clock.time = FIRST - 0.001  # the session sleeps for 1 ms
    await asyncio.sleep(0)
    drain.set(is_on=False)
    clock.time = 50.0
    drain.set(is_on=True)
    clock.time = 50.0 + LAST
    await moving
    assert drain.is_on
