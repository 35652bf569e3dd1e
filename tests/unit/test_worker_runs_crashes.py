"""The run book when an engine dies: who is to blame is found, and the others go on."""

from penstock.worker.engine.interface import (
    FinishReason,
    SequenceCancelled,
    SequenceFinished,
    StepResult,
)
from penstock.worker.runs import errors
from penstock.worker.runs.effects import AddSequence, CancelSequence, LeasesReleased, RunEnded
from worker_runs import EDGE, LIMITS, expect, make_run, ready_table, rejection_reason, started_run


def test_a_dead_engine_ends_every_run_and_the_next_one_starts_empty():
    book = ready_table()
    run, leaving = started_run(book), started_run(book, handle=2, lease="l2", ticket="t2")
    book.start(make_run(book, handle=3, lease="l3"), 0.0)
    book.cancel(EDGE, 2, 0.0)
    effects = book.on_engine_lost(errors.engine_died(), 1.0)
    over = [each for each in effects if isinstance(each, RunEnded)]
    outcomes = {each.run.handle: each.outcome for each in over}
    assert {each.run.handle for each in over if each.run.has_reached_engine} == {1, 2}
    assert [outcomes[handle].reason for handle in (1, 3)] == ["ENGINE_DIED", "ENGINE_DIED"]
    assert outcomes[2] == SequenceCancelled(leaving.seq_id, 0, 0)
    assert effects[-1] == LeasesReleased(("l1", "l2"))
    assert book.is_idle
    expect(book, "l4", "t4")
    assert rejection_reason(book.start(make_run(book, lease="l4", ticket="t4"), 1.0)) == "ENGINE_DIED"
    book.on_engine_ready(LIMITS)
    assert started_run(book, lease="l5", ticket="t5").seq_id > run.seq_id


def crash(book, now=1.0):
    """Return how runs ended at a crash, by handle."""
    effects = book.on_engine_lost(errors.engine_died(), now, crashed=True)
    return {each.run.handle: each.outcome.reason for each in effects if isinstance(each, RunEnded)}


def made(book, *runs, step=1):
    """A step that makes a token, 40, for each of the runs."""
    each = [run.seq_id for run in runs]
    result = StepResult(
        step, seq_ids=each, tokens=[40] * len(runs), indexes=[0] * len(runs), logprobs=[0.0] * len(runs)
    )
    return book.on_step(result, 1.0, 2.0)


def let_go(book, run, step=1):
    """A step that lets go of the run."""
    return book.on_step(StepResult(step, cancelled=[SequenceCancelled(run.seq_id, 0, 1)]), 1.0, 2.0)


def test_the_run_that_crashes_an_engine_again_is_found_and_the_others_go_on():
    book = ready_table()
    old = started_run(book)
    made(book, old)
    poison, innocent = (started_run(book, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (2, 3))
    assert crash(book) == {}
    [tried] = book.on_engine_ready(LIMITS)
    assert (tried.spec.seq_id, tried.spec.token_ids) == (poison.seq_id, [0, 1, 2])  # what is new is likelier to blame
    assert book.not_ready_error, "nobody else may be beside it"
    assert crash(book) == {2: "ENGINE_CRASHED"}
    assert book.on_engine_ready(LIMITS) == [AddSequence(innocent.spec)]
    made(book, innocent)
    assert let_go(book, innocent) == [AddSequence(old.spec)]
    _, on = made(book, old)
    assert on == AddSequence(innocent.spec)
    assert book.not_ready_error is None
    assert list(book.running.values()) == [old, innocent]


def test_each_suspect_is_isolated_with_its_output_and_waits_for_the_others_before_it_continues():
    book = ready_table()
    first, second = runs = [started_run(book, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (1, 2)]
    made(book, *runs)
    assert crash(book) == {}
    assert book.on_engine_ready(LIMITS) == [AddSequence(first.spec)]
    spec = first.spec
    assert (spec.token_ids, spec.emitted, spec.max_output_tokens) == ([0, 1, 2, 40], 1, 3)
    tokens, let_it_go = made(book, first)
    assert tokens.handles == [1]
    assert let_it_go == CancelSequence(first.seq_id)
    assert let_go(book, first) == [AddSequence(second.spec)]
    assert book.not_ready_error, "a crash would be the fault of one of two"
    _, on = made(book, second)
    assert on == AddSequence(first.spec)
    assert first.spec.emitted == 2
    assert book.not_ready_error is None
    assert list(book.running.values()) == [second, first]


def test_a_cleared_run_that_crashes_the_engine_while_leaving_is_isolated_again_alone():
    book = ready_table()
    first, _ = (started_run(book, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (1, 2))
    crash(book)
    book.on_engine_ready(LIMITS)
    made(book, first)
    assert crash(book) == {}
    book.on_engine_ready(LIMITS)
    other = book.quarantine.isolation.isolated
    made(book, other)
    assert let_go(book, other) == [AddSequence(first.spec)]
    assert crash(book) == {1: "ENGINE_CRASHED", 2: "ENGINE_DIED"}  # nothing is held against the other any more


def test_a_run_isolated_in_an_engine_that_was_killed_is_isolated_again():
    book = ready_table()
    run = started_run(book)
    crash(book)
    book.on_engine_ready(LIMITS)
    assert book.on_engine_lost(errors.engine_died(), 1.0) == []
    assert book.on_engine_ready(LIMITS) == [AddSequence(run.spec)]


def test_a_run_without_a_deadline_waits_for_its_turn_without_a_timer():
    book = ready_table()
    for handle in (1, 2):
        started_run(book, handle=handle, lease=f"l{handle}", ticket=f"t{handle}")
    crash(book, now=1.0)
    assert book.next_expiry == 31.0
    book.on_engine_ready(LIMITS)
    assert book.next_expiry is None


def test_a_revoked_lease_of_a_quarantined_run_changes_nothing():
    book = ready_table()
    book.quarantine.max_wait_s = 5.0
    started_run(book)
    crash(book, now=1.0)
    assert book.revoke("l1", 1.5) == []
    assert rejection_reason(book.expire(6.0)) == "ENGINE_DIED"


def test_the_end_of_an_isolated_run_counts_all_its_tokens():
    book = ready_table()
    run = started_run(book)
    made(book, run)
    crash(book)
    book.on_engine_ready(LIMITS)
    last = StepResult(1, seq_ids=[run.seq_id], tokens=[41], indexes=[1], logprobs=[0.0])
    last.finished = [SequenceFinished(run.seq_id, FinishReason.STOP, 1, 0)]
    _, ended, _ = book.on_step(last, 1.0, 2.0)
    assert ended.outcome.output_tokens == 2
    assert book.not_ready_error is None
    assert book.is_idle


def test_a_quarantined_run_can_be_cancelled_and_does_not_wait_for_ever():
    book = ready_table()
    book.quarantine.max_wait_s = 5.0
    for handle, deadline in ((1, 3.0), (2, 100.0), (3, 100.0)):
        started_run(book, handle=handle, lease=f"l{handle}", ticket=f"t{handle}", deadline=deadline)
    assert crash(book, now=1.0) == {}
    ended, _ = book.cancel(EDGE, 3, 1.5)
    assert ended.outcome.output_tokens == 0
    assert rejection_reason(book.expire(3.0)) == "DEADLINE"
    assert rejection_reason(book.expire(6.0)) == "ENGINE_DIED"
    assert [each.is_reported for each in book.expire(8.0)] == [False, False]  # their trials, which nobody waited for
    assert book.is_idle
    assert book.on_engine_ready(LIMITS) == []
    assert book.not_ready_error is None


def test_an_engine_killed_from_outside_leaves_no_suspicion():
    book = ready_table()
    started_run(book)
    book.on_engine_lost(errors.engine_died(), 1.0)
    assert not book.quarantine.isolation
