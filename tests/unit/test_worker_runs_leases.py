"""Starts of the run table: their leases, and failures."""

from dataclasses import replace

import pytest

from penstock.mesh.prefill_rank import DEFAULT_RANK, EXPRESS_RANK
from penstock.worker.engine.interface import (
    FinishReason,
    SamplingParams,
    SequenceCancelled,
    SequenceFinished,
    StepResult,
)
from penstock.worker.runs.effects import AddSequence, CancelSequence, LeasesReleased, LeaseStarted
from penstock.worker.runs.errors import engine_died
from penstock.worker.runs.leases import LeaseGrant, LeaseTable
from penstock.worker.runs.limits import RunLimits
from penstock.worker.runs.table import RunTable
from worker_runs import EDGE, LIMITS, expect, make_run, ready_table, rejection_reason, started_run, step_result


def test_an_announced_lease_starts_at_once():
    table = ready_table()
    started_run(table)
    assert repr(table) == "<RunTable 0 expected, 0 parked, 1 running on 1 streams>"


def test_a_run_has_the_prefill_rank_that_its_lease_was_announced_with():
    table = ready_table()
    table.expect("l1", LeaseGrant("t1", prefill_rank=EXPRESS_RANK), "me", 5.0, 0.0)
    [_, added] = table.start(make_run(table), 0.0)
    assert added.spec.prefill_rank == EXPRESS_RANK
    other = started_run(table, handle=2, lease="l2", ticket="t2", prefill_rank=EXPRESS_RANK)
    assert other.spec.prefill_rank == DEFAULT_RANK


def test_a_start_that_overtakes_its_announcement_waits_for_it():
    table = ready_table()
    run = make_run(table)
    assert table.start(run, 0.0) == []
    assert repr(table) == "<RunTable 0 expected, 1 parked, 0 running on 1 streams>"
    assert expect(table) == [LeaseStarted("l1"), AddSequence(run.spec)]
    assert table.expire(10.0) == []


def test_a_start_whose_lease_is_never_announced_fails_after_its_wait():
    table = ready_table(lease_announce_timeout=1.0)
    table.start(make_run(table), 0.0)
    assert table.next_expiry == 1.0
    assert table.expire(0.9) == []
    assert rejection_reason(table.expire(1.0)) == "LEASE_LOST"
    assert table.is_idle


def test_a_lease_announced_after_its_start_failed_is_released_at_once():
    table = ready_table()
    table.start(make_run(table), 0.0)
    table.expire(1.0)
    assert expect(table, now=1.1) == [LeasesReleased(("l1",))]
    assert table.is_idle


def test_only_so_many_starts_wait_for_an_announcement():
    table = ready_table(max_parked=1)
    assert table.start(make_run(table), 0.0) == []
    assert rejection_reason(table.start(make_run(table, handle=2, lease="l2"), 0.0)) == "LEASE_LOST"


def test_a_lapsed_lease_is_lost():
    table = ready_table()
    expect(table, lapses_at=5.0)
    assert table.expire(5.0) == []
    assert rejection_reason(table.start(make_run(table), 5.1)) == "LEASE_LOST"


def test_a_lease_of_another_worker_is_ignored():
    table = ready_table()
    assert expect(table, worker="another") == []
    assert not table.leases.expected


def test_a_lease_runs_the_ticket_it_was_granted_for_and_no_other():
    table = ready_table()
    expect(table, ticket="t1")
    assert rejection_reason(table.start(make_run(table, ticket="t2"), 0.0)) == "LEASE_LOST"
    assert table.start(make_run(table, ticket="t1"), 0.0)[0] == LeaseStarted("l1")


def test_a_lease_runs_once():
    table = ready_table()
    run = started_run(table)
    assert rejection_reason(table.start(make_run(table, handle=2), 0.0)) == "LEASE_LOST"
    table.on_step(step_result(1, run, finished=[SequenceFinished(run.seq_id, FinishReason.STOP, 1, 0)]), 0.0, 1.0)
    assert rejection_reason(table.start(make_run(table, handle=3), 1.0)) == "LEASE_LOST"


def test_a_second_start_of_a_waiting_lease_leaves_the_first_alone():
    table = ready_table()
    first = make_run(table)
    table.start(first, 0.0)
    assert rejection_reason(table.start(make_run(table, handle=2), 0.0)) == "LEASE_LOST"
    assert expect(table) == [LeaseStarted("l1"), AddSequence(first.spec)]


def test_a_handle_used_twice_ends_both_runs_and_only_the_second_is_reported():
    table = ready_table()
    run = started_run(table)
    effects = table.start(make_run(table, lease="l2"), 0.0)
    assert effects[0] == CancelSequence(run.seq_id)
    assert rejection_reason(effects) == "START_INVALID"
    [ended, released] = table.on_step(StepResult(2, cancelled=[SequenceCancelled(run.seq_id, 0, 1)]), 0.0, 1.0)
    assert not ended.is_reported
    assert released == LeasesReleased(("l1",))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"prompt": 0}, "START_INVALID"),
        ({"emitted": 3}, "START_INVALID"),
        ({"output": 0}, "START_INVALID"),
        ({"cache_salt": b"short"}, "START_INVALID"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "START_INVALID"),
        ({"sampling": SamplingParams(top_p=0.0)}, "START_INVALID"),
        ({"sampling": SamplingParams(top_logprobs=21)}, "START_INVALID"),
        ({"sampling": SamplingParams(logit_bias=((100, 1.0),))}, "START_INVALID"),
        ({"sampling": SamplingParams(logit_bias=((5, 100.5),))}, "START_INVALID"),
        ({"sampling": SamplingParams(logit_bias=((5, 1.0),) * 301)}, "START_INVALID"),
        ({"prompt": 61, "output": 4}, "PROMPT_TOO_LONG"),
        ({"deadline": 0.0}, "DEADLINE"),
    ],
)
def test_a_start_that_can_never_run_fails_and_its_lease_is_released(what, reason):
    table = ready_table()
    expect(table)
    started, ended, released = table.start(make_run(table, **what), 0.0)
    assert (started, ended.outcome.reason, released) == (LeaseStarted("l1"), reason, LeasesReleased(("l1",)))
    assert table.is_idle


def test_a_token_id_outside_the_vocabulary_never_reaches_the_engine():
    table = ready_table()
    expect(table)
    run = make_run(table)
    run.spec.token_ids.append(100)
    assert rejection_reason(table.start(run, 0.0)) == "START_INVALID"


def test_a_prompt_beyond_all_kv_blocks_fails_with_the_numbers():
    table = RunTable(leases=LeaseTable("me"))
    table.on_engine_ready(RunLimits(context_length=1000, vocab_size=1000, blocks=16, block_size=4), 0.0)
    table.streams.open(EDGE)
    expect(table)
    ended = table.start(make_run(table, prompt=61, output=4), 0.0)[1]
    assert ended.outcome.reason == "PROMPT_TOO_LONG"
    assert ended.outcome.metadata == {"prompt_tokens": "61", "kv_blocks_needed": "17", "kv_blocks": "16"}


OLD, NEW = "chat@old", "chat@new"


def table_of(model):
    table = RunTable(leases=LeaseTable("me"))
    table.on_engine_ready(replace(LIMITS, model=model), 0.0)
    table.streams.open(EDGE)
    return table


def test_a_start_for_another_model_is_rejected_before_the_engine_has_it():
    table = table_of(NEW)
    expect(table)
    run = make_run(table)
    run.model = OLD
    effects = table.start(run, 0.0)
    assert rejection_reason(effects) == "MODEL_MISMATCH"
    assert not run.has_reached_engine
    assert table.is_idle


def test_a_start_for_the_served_model_runs():
    table = table_of(NEW)
    expect(table)
    run = make_run(table)
    run.model = NEW
    assert table.start(run, 0.0) == [LeaseStarted("l1"), AddSequence(run.spec)]


def test_runs_in_quarantine_do_not_continue_on_an_engine_with_other_weights():
    table = table_of(OLD)
    expect(table)
    run = make_run(table)
    run.model = OLD
    table.start(run, 0.0)
    table.on_engine_lost(engine_died(), 1.0, crashed=True)
    assert rejection_reason(table.on_engine_ready(replace(LIMITS, model=NEW), 2.0)) == "MODEL_MISMATCH"
    assert table.is_idle
    assert table.not_ready_error is None
