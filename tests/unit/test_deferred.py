"""Deferred calls run in order, a few per turn, also after one of them raises."""

import asyncio

import structlog

from fake_loop import FakeLoop
from penstock.chassis.lifecycle import run
from penstock.chassis.observability import deferred as module
from penstock.chassis.observability.deferred import (
    MIN_CALLS_PER_TURN,
    TURN_SHARE,
    DeferredCalls,
    defer,
    deferred_calls,
)


def deferred_on_fake_loop(count, made):
    loop = FakeLoop()
    deferred = DeferredCalls(loop)
    for number in range(count):
        deferred.add(lambda number=number: made.append(number))
    return loop, deferred


def test_calls_are_deferred_and_run_in_order():
    made = []
    loop, _ = deferred_on_fake_loop(3, made)
    assert not made
    loop.fire_next()
    assert (made, loop.now) == ([0, 1, 2], module.DEFERRAL_S)
    assert not loop.fire_next()


def test_a_turn_runs_a_few_calls_or_a_share_of_many():
    made = []
    loop, deferred = deferred_on_fake_loop(1_000, made)
    loop.fire_next()
    assert len(made) == round(TURN_SHARE * 1_000)
    while loop.fire_next():
        before = len(made)
    assert made == list(range(1_000))
    assert 1_000 - before <= MIN_CALLS_PER_TURN
    assert not deferred


def test_a_call_that_fails_is_logged_and_the_others_run():
    made = []
    loop, deferred = deferred_on_fake_loop(1, made)
    deferred.add(lambda: 1 / 0)
    deferred.add(lambda: made.append("after"))
    with structlog.testing.capture_logs() as logs:
        loop.fire_next()
    assert made == [0, "after"]
    assert [each["event"] for each in logs] == ["deferred_call_failed"]


def test_flush_runs_all_calls_at_once_and_leaves_no_timer():
    made = []
    loop, deferred = deferred_on_fake_loop(100, made)
    deferred.flush()
    assert made == list(range(100))
    assert not loop.fire_next()
    deferred.add(lambda: made.append("later"))
    assert loop.fire_next()
    assert made[-1] == "later"


def test_each_loop_has_its_own_calls_and_the_end_of_a_process_loses_none():
    made = []

    async def main():
        defer(lambda: made.append("deferred"))
        assert len(deferred_calls()) == 1
        assert not made

    run(main)
    assert made == ["deferred"]

    async def next_loop():
        assert not len(deferred_calls())

    asyncio.run(next_loop())


def test_at_most_the_maximum_waits_and_the_oldest_runs_first():
    made = []
    _, deferred = deferred_on_fake_loop(module.MAX_DEFERRED_CALLS, made)
    assert not made
    deferred.add(lambda: made.append("newest"))
    assert (made, len(deferred)) == ([0], module.MAX_DEFERRED_CALLS)
