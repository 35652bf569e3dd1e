"""The run table: tokens, receipts and deadlines, as sequences of plain calls."""

from penstock.worker.engine.interface import (
    FinishReason,
    SamplingParams,
    SequenceAdmitted,
    SequenceCancelled,
    SequenceFinished,
    SequencePrefilled,
    StepResult,
)
from penstock.worker.runs import errors
from penstock.worker.runs.effects import CancelSequence, LeasesReleased, LeaseStarted, RunEnded, StepTokens
from penstock.worker.runs.leases import LeaseTable
from penstock.worker.runs.run import LeaseProgress
from penstock.worker.runs.table import RunTable
from penstock.worker.scheduler_session.progress import (
    MAX_OUTPUTS_PER_S,
    PROGRESS_INTERVAL_S,
    ProgressReport,
    ProgressReporter,
)
from worker_runs import EDGE, expect, make_run, ready_table, rejection_reason, started_run, step_result


def test_one_step_makes_one_group_of_tokens_per_stream():
    table = ready_table()
    table.streams.open(8)
    first, second = started_run(table), started_run(table, handle=2, lease="l2", ticket="t2")
    other = started_run(table, lease="l3", ticket="t3", stream=8)
    here, there = table.on_step(step_result(1, first, other, second), 0.0, 1.0)
    assert here == StepTokens(EDGE, 1, [1, 2], [11, 11], [0, 0], [-0.5, -0.5])
    assert there == StepTokens(8, 1, [1], [11], [0], [-0.5])


def test_logprobs_are_sent_if_one_run_of_the_stream_requested_them():
    table = ready_table()
    runs = [
        started_run(table),
        started_run(table, handle=2, lease="l2", ticket="t2", sampling=SamplingParams(logprobs=True)),
    ]
    [tokens] = table.on_step(step_result(1, *runs), 0.0, 1.0)
    assert tokens.has_logprobs


def test_the_three_times_add_up_to_the_time_from_start_to_last_token():
    table = ready_table()
    run = started_run(table)
    table.on_step(StepResult(1, admitted=[(run.seq_id, 2)]), 0.5, 1.0)
    table.on_step(step_result(2, run), 1.0, 2.0)
    ended = table.on_step(
        step_result(3, run, finished=[SequenceFinished(run.seq_id, FinishReason.LENGTH, 2, 2)]), 2.0, 4.0
    )[1]
    assert run.times(ended.at) == (0.5, 1.5, 2.0)
    assert run.cached_tokens == 2


def test_the_latest_preemptions_of_a_run_are_kept():
    table = ready_table()
    run, other = started_run(table), started_run(table, handle=2, lease="l2", ticket="t2")
    for step in range(20):
        table.on_step(StepResult(step, preempted=(run.seq_id, 99)), float(step), step + 0.5)
    assert run.preempted_at == tuple(map(float, range(4, 20)))
    assert other.preempted_at == ()


def test_the_last_token_before_a_cancel_was_the_last_one_wanted():
    table = ready_table()
    run = started_run(table)
    table.on_step(step_result(1, run), 0.0, 1.0)
    table.cancel(EDGE, 1, 1.5)
    table.on_step(step_result(2, run), 1.0, 2.0)
    assert (run.last_wanted_at, run.last_token_at) == (1.0, 2.0)


def test_a_cancel_gets_its_receipt_once_the_engine_has_released_the_run():
    table = ready_table()
    run = started_run(table)
    assert table.cancel(EDGE, 1, 0.0) == [CancelSequence(run.seq_id)]
    assert table.cancel(EDGE, 1, 0.0) == []
    assert table.on_step(step_result(1, run), 0.0, 1.0) == []  # a token generated in that time is counted but not sent
    ended, released = table.on_step(StepResult(2, cancelled=[SequenceCancelled(run.seq_id, 1, 2)]), 1.0, 2.0)
    assert (ended.outcome, ended.step, ended.is_reported) == (SequenceCancelled(run.seq_id, 1, 2), 2, True)
    assert released == LeasesReleased(("l1",), (LeaseProgress("l1", 3, 1, 1.0),))
    assert (table.counters.cancels, table.counters.tokens_wasted_after_cancel) == (1, 1)
    assert (run.stop_requested_at, run.released_at, run.steps_after_stop) == (0.0, 1.0, 1)  # one step was running
    assert table.is_idle


def test_tokens_made_before_the_engine_received_the_cancel_are_not_wasted():
    table = ready_table()
    run = started_run(table)
    table.cancel(EDGE, 1, 0.0)
    table.on_cancel_sent(run.seq_id, 1.5)
    for number in (1, 2):
        table.on_step(step_result(number, run), number - 1.0, float(number))
    table.on_step(StepResult(3, cancelled=[SequenceCancelled(run.seq_id, 2, 2)]), 2.0, 3.0)
    assert (run.tokens, run.wasted_tokens, table.counters.tokens_wasted_after_cancel) == (2, 1, 1)
    assert run.steps_after_stop == 1


def test_a_token_reported_between_the_cancel_and_its_sending_is_not_wasted():
    table = ready_table()
    run = started_run(table)
    table.cancel(EDGE, 1, 0.0)
    table.on_step(step_result(1, run), 0.0, 1.0)
    table.on_cancel_sent(run.seq_id, 1.5)
    table.on_step(StepResult(2, cancelled=[SequenceCancelled(run.seq_id, 1, 2)]), 2.0, 3.0)
    assert (run.tokens, run.wasted_tokens, run.steps_after_stop) == (1, 0, 0)


def test_a_cancel_may_reach_an_engine_that_has_released_the_run():
    table = ready_table()
    run = started_run(table)
    table.cancel(EDGE, 1, 0.0)
    table.on_step(StepResult(1, cancelled=[SequenceCancelled(run.seq_id, 0, 2)]), 0.5, 1.0)
    table.on_cancel_sent(run.seq_id, 1.5)
    assert run.stop_requested_at == 0.0


def test_a_late_cancel_still_gets_its_receipt():
    table = ready_table()
    run = started_run(table)
    table.cancel(EDGE, 1, 0.0)
    ended, _ = table.on_step(
        step_result(1, run, finished=[SequenceFinished(run.seq_id, FinishReason.STOP, 1, 0)]), 0.0, 1.0
    )
    assert ended.outcome == SequenceCancelled(run.seq_id, 1, 0)


def test_a_cancelled_run_that_still_waits_for_its_lease_stops_at_once():
    table = ready_table()
    table.start(make_run(table), 0.0)
    [ended] = table.cancel(EDGE, 1, 0.0)
    assert ended.outcome[1:] == (0, 0)
    assert table.is_idle
    assert table.cancel(EDGE, 1, 0.0) == []


def test_a_cancel_of_an_unknown_handle_is_ignored():
    assert ready_table().cancel(EDGE, 99, 0.0) == []


def test_a_lost_stream_cancels_its_runs_and_no_other():
    table = ready_table()
    table.streams.open(8)
    run, other = started_run(table), started_run(table, lease="l2", ticket="t2", stream=8)
    table.start(make_run(table, handle=5, lease="never"), 0.0)
    effects = table.close_stream(EDGE, 0.0)
    assert [each for each in effects if not isinstance(each, RunEnded)] == [CancelSequence(run.seq_id)]
    assert not any(each.is_reported for each in effects if isinstance(each, RunEnded))
    [ended, _] = table.on_step(StepResult(1, cancelled=[SequenceCancelled(run.seq_id, 0, 1)]), 0.0, 1.0)
    assert not ended.is_reported
    assert set(table.running) == {other.seq_id}


def test_a_run_past_its_deadline_is_cancelled_and_fails():
    table = ready_table()
    run = started_run(table, deadline=3.0)
    assert table.next_expiry == 3.0
    assert table.expire(3.0) == [CancelSequence(run.seq_id)]
    effects = table.on_step(StepResult(1, cancelled=[SequenceCancelled(run.seq_id, 0, 1)]), 3.0, 3.1)
    assert rejection_reason(effects) == "DEADLINE"


def test_a_run_whose_last_tokens_were_held_back_has_not_finished():
    table = ready_table()
    run = started_run(table, deadline=3.0)
    table.expire(3.0)
    done = SequenceFinished(run.seq_id, FinishReason.STOP, 1, 0)
    assert rejection_reason(table.on_step(step_result(1, run, finished=[done]), 3.0, 3.1)) == "DEADLINE"


def test_a_parked_start_fails_at_its_deadline_if_that_comes_first():
    table = ready_table(lease_announce_timeout=1.0)
    table.start(make_run(table, deadline=0.5), 0.0)
    assert rejection_reason(table.expire(0.5)) == "DEADLINE"


def test_a_revoked_lease_fails_before_and_after_its_start():
    table = ready_table()
    expect(table)
    assert table.revoke("l1", 0.0) == []
    assert rejection_reason(table.start(make_run(table), 0.0)) == "LEASE_LOST"
    run = started_run(table, handle=2, lease="l2", ticket="t2")
    assert table.revoke("l2", 0.0) == [CancelSequence(run.seq_id)]
    assert (
        rejection_reason(table.on_step(StepResult(1, cancelled=[SequenceCancelled(run.seq_id, 0, 1)]), 0.0, 1.0))
        == "LEASE_REVOKED"
    )


def test_no_run_starts_before_the_model_is_loaded():
    table = RunTable(leases=LeaseTable("me"))
    table.streams.open(EDGE)
    assert rejection_reason(table.start(make_run(table), 0.0)) == "LOADING"


def test_a_run_that_the_engine_rejects_fails():
    table = ready_table()
    run = started_run(table)
    ended, released = table.on_engine_rejected(run.seq_id, errors.deadline_passed(), 0.0)
    assert ended.is_reported
    assert released == LeasesReleased(("l1",))


def test_a_draining_worker_starts_granted_leases_alone():
    table = ready_table()
    table.start(make_run(table), 0.0)
    expect(table, "l2", "t2")
    assert rejection_reason(table.drain(0.0)) == "DRAINING"
    assert not table.is_idle  # the granted lease may still be started
    assert rejection_reason(table.start(make_run(table, lease="l3"), 0.0)) == "DRAINING"
    assert table.start(make_run(table, lease="l2", ticket="t2"), 0.0)[0] == LeaseStarted("l2")


def take_due(reporter, table, now):
    return reporter.take_due([run.progress for run in table.running.values()], now)


def test_progress_is_reported_in_totals_if_it_changed_and_at_most_once_per_interval():
    table, reporter = ready_table(), ProgressReporter()
    run = started_run(table, prompt=10)
    table.on_step(
        StepResult(1, admitted=[SequenceAdmitted(run.seq_id, 4)], prefilled=[SequencePrefilled(run.seq_id, 5)]),
        0.0,
        0.0,
    )
    assert take_due(reporter, table, 1.0) == ProgressReport([(1, LeaseProgress("l1", 5, 0))], [], [])
    table.on_step(step_result(2, run), 1.0, 1.1)
    assert take_due(reporter, table, 1.2) is None
    assert take_due(reporter, table, 1.25) == ProgressReport([(1, LeaseProgress("l1", 6, 1, 1.1))], [], [])
    assert take_due(reporter, table, 3.0) is None
    table.on_step(step_result(3, run), 3.0, 3.1)
    assert take_due(reporter, table, 4.0) == ProgressReport([], [1], [2])


def test_a_worker_with_many_leases_reports_their_output_once_a_second_and_first_tokens_at_once():
    reporter, leases = ProgressReporter(), [f"l{number}" for number in range(MAX_OUTPUTS_PER_S)]
    sizes = []
    for tick in range(1, 13):
        now = tick * PROGRESS_INTERVAL_S
        present = [*leases, *(["late"] if tick >= 6 else [])]
        running = [LeaseProgress(each, 5, tick, 0.1) for each in present]
        report = reporter.take_due(running, now) or ProgressReport([], [], [])
        sizes.append((len(report.leases), len(report.lease_numbers)))
    many = len(leases)
    assert sizes[:5] == [(many, 0), (0, 0), (0, 0), (0, 0), (0, many)]
    assert sizes[5:] == [(1, 0), (0, 0), (0, 0), (0, many + 1), (0, 0), (0, 0), (0, 0)]


def test_output_that_was_left_out_is_reported_later():
    reporter = ProgressReporter()
    leases = [f"l{number}" for number in range(MAX_OUTPUTS_PER_S)]
    for now, tokens in ((1.0, 1), (1.5, 9), (2.0, 9)):
        report = reporter.take_due([LeaseProgress(each, 5, tokens, 0.1) for each in leases], now)
    assert report.output_tokens == [9] * len(leases)


def test_leases_are_reported_in_full_on_a_new_stream_and_by_numbers_that_are_not_used_again():
    table, reporter = ready_table(), ProgressReporter()
    run = started_run(table)
    for now in (1.0, 2.0):
        table.on_step(step_result(int(now), run), now, now)
        report = take_due(reporter, table, now)
    assert report.lease_numbers == [1]
    reporter.on_stream_opened()
    assert take_due(reporter, table, 3.0).leases == [(2, run.progress)]


def test_a_prompt_that_is_recomputed_after_a_preemption_counts_once():
    table, reporter = ready_table(), ProgressReporter()
    run = started_run(table, prompt=10)
    for number in (1, 2):
        table.on_step(StepResult(number, prefilled=[SequencePrefilled(run.seq_id, 8)]), 0.0, 0.0)
    assert take_due(reporter, table, 1.0).leases == [(1, LeaseProgress("l1", 10, 0))]


def test_the_end_of_a_run_reports_its_total_progress():
    table, reporter = ready_table(), ProgressReporter()
    run = started_run(table)
    table.on_step(step_result(1, run), 0.0, 0.0)
    assert take_due(reporter, table, 1.0).leases == [(1, LeaseProgress("l1", 3, 1, 0.0))]
    last = table.on_step(
        step_result(2, run, finished=[SequenceFinished(run.seq_id, FinishReason.STOP, 2, 0)]), 1.0, 1.1
    )
    assert last[-1] == LeasesReleased(("l1",), (LeaseProgress("l1", 3, 2, 0.0),))


def test_a_run_has_the_attempt_and_the_shard_of_its_lease():
    run = started_run(ready_table())
    assert (run.attempt, run.queue_id) == (2, "q")
