"""Until when a ticket that got a lease is charged as running."""

import pytest

from penstock.queue.charges import SILENCE, Service
from queue_tickets import Shard


@pytest.fixture
def shard():
    """One ticket got a lease and was served a part of its answer."""
    shard = Shard()
    shard.join()
    shard.enqueue("a", tokens=200)
    shard.credit(1)
    shard.wait(0.1)
    shard.place("a")
    return shard


def test_what_nobody_speaks_of_any_more_has_ended_with_what_it_was_served(shard):
    shard.book.served([Service("a", 90, 5, ended=False, attempt=1)])
    shard.wait(SILENCE - 1)
    assert len(shard.book.charges) == 1
    shard.wait(2)
    assert len(shard.book.charges) == 0


def test_what_is_spoken_of_runs_on(shard):
    for _ in range(4):
        shard.wait(SILENCE / 2)
        shard.book.served([Service("a", 90, 5, ended=False, attempt=1)])
    assert len(shard.book.charges) == 1


def test_what_was_unheard_of_for_long_runs_again_once_it_is_spoken_of(shard):
    shard.wait(SILENCE + 1)
    shard.book.served([Service("a", 90, 5, ended=False, attempt=1)])
    assert len(shard.book.charges) == 1
    shard.book.served([Service("a", 90, 10, ended=True, attempt=1)])
    assert len(shard.book.charges) == 0
