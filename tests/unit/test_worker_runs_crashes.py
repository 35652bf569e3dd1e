"""The run table after an engine's death: the cause is confirmed, and other runs continue."""

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
    table = ready_table()
    run, leaving = started_run(table), started_run(table, handle=2, lease="l2", ticket="t2")
    table.start(make_run(table, handle=3, lease="l3"), 0.0)
    table.cancel(EDGE, 2, 0.0)
    effects = table.on_engine_lost(errors.engine_died(), 1.0)
    over = [each for each in effects if isinstance(each, RunEnded)]
    outcomes = {each.run.handle: each.outcome for each in over}
    assert {each.run.handle for each in over if each.run.has_reached_engine} == {1, 2}
    assert [outcomes[handle].reason for handle in (1, 3)] == ["ENGINE_DIED", "ENGINE_DIED"]
    assert outcomes[2] == SequenceCancelled(leaving.seq_id, 0, 0)
    assert effects[-1] == LeasesReleased(("l1", "l2"))
    assert table.is_idle
    expect(table, "l4", "t4")
    assert rejection_reason(table.start(make_run(table, lease="l4", ticket="t4"), 1.0)) == "ENGINE_DIED"
    table.on_engine_ready(LIMITS, 0.0)
    assert started_run(table, lease="l5", ticket="t5").seq_id > run.seq_id


def crash(table, now=1.0):
    """Return how runs ended at a crash, by handle."""
    effects = table.on_engine_lost(errors.engine_died(), now, crashed=True)
    return {each.run.handle: each.outcome.reason for each in effects if isinstance(each, RunEnded)}


def made(table, *runs, step=1):
    """A step that makes a token, 40, for each of the runs."""
    each = [run.seq_id for run in runs]
    result = StepResult(
        step, seq_ids=each, tokens=[40] * len(runs), indexes=[0] * len(runs), logprobs=[0.0] * len(runs)
    )
    return table.on_step(result, 1.0, 2.0)


def release(table, run, step=1):
    """A step that releases the cancelled run."""
    return table.on_step(StepResult(step, cancelled=[SequenceCancelled(run.seq_id, 0, 1)]), 1.0, 2.0)


def test_the_run_that_crashes_an_engine_again_is_found_and_the_others_go_on():
    table = ready_table()
    old = started_run(table)
    made(table, old)
    poison, other_run = (started_run(table, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (2, 3))
    assert crash(table) == {}
    [tried] = table.on_engine_ready(LIMITS, 0.0)
    assert (tried.spec.seq_id, tried.spec.token_ids) == (poison.seq_id, [0, 1, 2])  # newer runs are more likely causes
    assert table.not_ready_error, "an isolated run is alone in its engine"
    assert crash(table) == {2: "ENGINE_CRASHED"}
    assert table.on_engine_ready(LIMITS, 0.0) == [AddSequence(other_run.spec)]
    made(table, other_run)
    assert release(table, other_run) == [AddSequence(old.spec)]
    _, on = made(table, old)
    assert on == AddSequence(other_run.spec)
    assert table.not_ready_error is None
    assert list(table.running.values()) == [old, other_run]


def test_each_suspect_is_isolated_with_its_output_and_waits_for_the_others_before_it_continues():
    table = ready_table()
    first, second = runs = [started_run(table, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (1, 2)]
    made(table, *runs)
    assert crash(table) == {}
    assert table.on_engine_ready(LIMITS, 0.0) == [AddSequence(first.spec)]
    spec = first.spec
    assert (spec.token_ids, spec.emitted, spec.max_output_tokens) == ([0, 1, 2, 40], 1, 3)
    tokens, cancel = made(table, first)
    assert tokens.handles == [1]
    assert cancel == CancelSequence(first.seq_id)
    assert release(table, first) == [AddSequence(second.spec)]
    assert table.not_ready_error, "a crash would be the fault of one of two"
    _, on = made(table, second)
    assert on == AddSequence(first.spec)
    assert first.spec.emitted == 2
    assert table.not_ready_error is None
    assert list(table.running.values()) == [second, first]


def test_a_cleared_run_that_crashes_the_engine_while_leaving_is_isolated_again_alone():
    table = ready_table()
    first, _ = (started_run(table, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (1, 2))
    crash(table)
    table.on_engine_ready(LIMITS, 0.0)
    made(table, first)
    assert crash(table) == {}
    table.on_engine_ready(LIMITS, 0.0)
    other = table.quarantine.isolation.isolated
    made(table, other)
    assert release(table, other) == [AddSequence(first.spec)]
    assert crash(table) == {1: "ENGINE_CRASHED", 2: "ENGINE_DIED"}  # the other run is no longer a suspect


def test_a_run_isolated_in_an_engine_that_was_killed_is_isolated_again():
    table = ready_table()
    run = started_run(table)
    crash(table)
    table.on_engine_ready(LIMITS, 0.0)
    assert table.on_engine_lost(errors.engine_died(), 1.0) == []
    assert table.on_engine_ready(LIMITS, 0.0) == [AddSequence(run.spec)]


def test_a_run_without_a_deadline_waits_for_its_turn_without_a_timer():
    table = ready_table()
    for handle in (1, 2):
        started_run(table, handle=handle, lease=f"l{handle}", ticket=f"t{handle}")
    crash(table, now=1.0)
    assert table.next_expiry == 31.0
    table.on_engine_ready(LIMITS, 0.0)
    assert table.next_expiry is None


def test_a_revoked_lease_of_a_quarantined_run_changes_nothing():
    table = ready_table()
    table.quarantine.max_wait_s = 5.0
    started_run(table)
    crash(table, now=1.0)
    assert table.revoke("l1", 1.5) == []
    assert rejection_reason(table.expire(6.0)) == "ENGINE_DIED"


def test_the_end_of_an_isolated_run_counts_all_its_tokens():
    table = ready_table()
    run = started_run(table)
    made(table, run)
    crash(table)
    table.on_engine_ready(LIMITS, 0.0)
    last = StepResult(1, seq_ids=[run.seq_id], tokens=[41], indexes=[1], logprobs=[0.0])
    last.finished = [SequenceFinished(run.seq_id, FinishReason.STOP, 1, 0)]
    _, ended, _ = table.on_step(last, 1.0, 2.0)
    assert ended.outcome.output_tokens == 2
    assert table.not_ready_error is None
    assert table.is_idle


def test_a_quarantined_run_can_be_cancelled_and_does_not_wait_for_ever():
    table = ready_table()
    table.quarantine.max_wait_s = 5.0
    for handle, deadline in ((1, 3.0), (2, 100.0), (3, 100.0)):
        started_run(table, handle=handle, lease=f"l{handle}", ticket=f"t{handle}", deadline=deadline)
    assert crash(table, now=1.0) == {}
    ended, _ = table.cancel(EDGE, 3, 1.5)
    assert ended.outcome.output_tokens == 0
    assert rejection_reason(table.expire(3.0)) == "DEADLINE"
    assert rejection_reason(table.expire(6.0)) == "ENGINE_DIED"
    assert [each.is_reported for each in table.expire(8.0)] == [False, False]  # orphans, which no stream waits for
    assert table.is_idle
    assert table.on_engine_ready(LIMITS, 0.0) == []
    assert table.not_ready_error is None


def test_an_engine_killed_from_outside_leaves_no_suspect():
    table = ready_table()
    started_run(table)
    table.on_engine_lost(errors.engine_died(), 1.0)
    assert not table.quarantine.isolation
