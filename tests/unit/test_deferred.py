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


def put(count, made):
    clockwork = FakeLoop()
    kept = DeferredCalls(clockwork)
    for number in range(count):
        kept.add(lambda number=number: made.append(number))
    return clockwork, kept


def test_calls_are_deferred_and_run_in_order():
    made = []
    clockwork, _ = put(3, made)
    assert not made
    clockwork.fire_next()
    assert (made, clockwork.now) == ([0, 1, 2], module.DEFERRAL_S)
    assert not clockwork.fire_next()


def test_a_turn_makes_a_few_or_a_share_of_many():
    made = []
    clockwork, kept = put(1_000, made)
    clockwork.fire_next()
    assert len(made) == round(TURN_SHARE * 1_000)
    while clockwork.fire_next():
        before = len(made)
    assert made == list(range(1_000))
    assert 1_000 - before <= MIN_CALLS_PER_TURN
    assert not kept


def test_one_that_fails_is_logged_and_the_others_are_made():
    made = []
    clockwork, kept = put(1, made)
    kept.add(lambda: 1 / 0)
    kept.add(lambda: made.append("after"))
    with structlog.testing.capture_logs() as logs:
        clockwork.fire_next()
    assert made == [0, "after"]
    assert [each["event"] for each in logs] == ["deferred_call_failed"]


def test_finish_makes_all_of_it_now_and_leaves_no_timer():
    made = []
    clockwork, kept = put(100, made)
    kept.flush()
    assert made == list(range(100))
    assert not clockwork.fire_next()
    kept.add(lambda: made.append("later"))
    assert clockwork.fire_next()
    assert made[-1] == "later"


def test_each_loop_has_its_own_and_a_process_that_ends_loses_none_of_it():
    made = []

    async def main():
        defer(lambda: made.append("told"))
        assert len(deferred_calls()) == 1
        assert not made

    run(main)
    assert made == ["told"]

    async def next_loop():
        assert not len(deferred_calls())

    asyncio.run(next_loop())


def test_at_most_the_maximum_waits_and_the_oldest_runs_first():
    made = []
    _, kept = put(module.MAX_DEFERRED_CALLS, made)
    assert not made
    kept.add(lambda: made.append("newest"))
    assert (made, len(kept)) == ([0], module.MAX_DEFERRED_CALLS)
