"""The run book: leases, handles, receipts and deadlines, as an order of plain calls."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.worker import refusals
from penstock.worker.effects import AddSequence, CancelSequence, Ended, LeasesReleased, LeaseStarted, Tokens
from penstock.worker.engine.batch import Batch
from penstock.worker.engine.batching import Continuous
from penstock.worker.engine.blocks import BlockPool
from penstock.worker.engine.interface import (
    Admitted,
    Cancelled,
    Finished,
    FinishReason,
    Prefilled,
    SamplingParams,
    SequenceSpec,
    StepResult,
)
from penstock.worker.leases import Grant, LeaseBook
from penstock.worker.limits import Limits
from penstock.worker.run import Asked, Run, Served
from penstock.worker.runs import RunBook

LIMITS = Limits(context_length=64, vocabulary=100, blocks=16, block_size=4)
EDGE = 7


def ready_book(**options):
    book = RunBook(leases=LeaseBook("me"), **options)
    book.engine_ready(LIMITS)
    book.open_stream(EDGE)
    return book


def make_run(
    book, *, handle=1, lease="l1", ticket="t1", prompt=3, output=4, deadline=float("inf"), stream=EDGE, **spec
):
    spec = SequenceSpec(seq_id=book.new_seq_id(), token_ids=list(range(prompt)), max_output_tokens=output, **spec)
    return Run(
        stream=stream, handle=handle, lease_id=lease, ticket_id=ticket, spec=spec, arrived_at=0.0, deadline=deadline
    )


def expect(book, lease="l1", ticket="t1", *, worker="me", lapses_at=5.0, now=0.0):
    return book.expect(lease, Grant(ticket, attempt=2, queue_id="q"), worker, lapses_at, now)


def running(book, **what):
    """A run that the engine has."""
    expect(book, what.get("lease", "l1"), what.get("ticket", "t1"))
    run = make_run(book, **what)
    assert book.start(run, 0.0) == [LeaseStarted(run.lease_id), AddSequence(run.spec)]
    return run


def refusal(effects):
    """Reason of the one refusal among `effects`."""
    [ended] = [each for each in effects if isinstance(each, Ended)]
    return ended.outcome.reason


def step_of(number, *runs, **more):
    return StepResult(
        number,
        seq_ids=[run.seq_id for run in runs],
        tokens=[10 + number] * len(runs),
        indexes=[run.tokens for run in runs],
        logprobs=[-0.5] * len(runs),
        **more,
    )


def test_an_announced_lease_starts_at_once():
    book = ready_book()
    running(book)
    assert repr(book) == "<RunBook 0 expected, 0 parked, 1 running on 1 streams>"


def test_what_is_urgent_is_as_the_lease_was_announced():
    book = ready_book()
    book.expect("l1", Grant("t1", is_urgent=True), "me", 5.0, 0.0)
    [_, added] = book.start(make_run(book), 0.0)
    assert added.spec.is_urgent
    assert not running(book, handle=2, lease="l2", ticket="t2", is_urgent=True).spec.is_urgent


def test_a_start_that_overtakes_its_announcement_waits_for_it():
    book = ready_book()
    run = make_run(book)
    assert book.start(run, 0.0) == []
    assert repr(book) == "<RunBook 0 expected, 1 parked, 0 running on 1 streams>"
    assert expect(book) == [LeaseStarted("l1"), AddSequence(run.spec)]
    assert book.expire(10.0) == []


def test_a_start_whose_lease_is_never_announced_is_refused_after_its_wait():
    book = ready_book(park_for=1.0)
    book.start(make_run(book), 0.0)
    assert book.next_expiry == 1.0
    assert book.expire(0.9) == []
    assert refusal(book.expire(1.0)) == "LEASE_LOST"
    assert book.is_idle


def test_a_lease_announced_after_its_start_was_refused_is_released_at_once():
    book = ready_book()
    book.start(make_run(book), 0.0)
    book.expire(1.0)
    assert expect(book, now=1.1) == [LeasesReleased(("l1",))]
    assert book.is_idle


def test_only_so_many_starts_wait_for_an_announcement():
    book = ready_book(max_parked=1)
    assert book.start(make_run(book), 0.0) == []
    assert refusal(book.start(make_run(book, handle=2, lease="l2"), 0.0)) == "LEASE_LOST"


def test_a_lapsed_lease_is_lost():
    book = ready_book()
    expect(book, lapses_at=5.0)
    assert book.expire(5.0) == []
    assert refusal(book.start(make_run(book), 5.1)) == "LEASE_LOST"


def test_a_lease_of_another_worker_is_not_ours():
    book = ready_book()
    assert expect(book, worker="another") == []
    assert not book.leases.expected


def test_a_lease_runs_the_ticket_it_was_granted_for_and_no_other():
    book = ready_book()
    expect(book, ticket="t1")
    assert refusal(book.start(make_run(book, ticket="t2"), 0.0)) == "LEASE_LOST"
    assert book.start(make_run(book, ticket="t1"), 0.0)[0] == LeaseStarted("l1")


def test_a_lease_runs_once():
    book = ready_book()
    run = running(book)
    assert refusal(book.start(make_run(book, handle=2), 0.0)) == "LEASE_LOST"
    book.stepped(step_of(1, run, finished=[Finished(run.seq_id, FinishReason.STOP, 1, 0)]), 0.0, 1.0)
    assert refusal(book.start(make_run(book, handle=3), 1.0)) == "LEASE_LOST"


def test_a_second_start_of_a_waiting_lease_leaves_the_first_alone():
    book = ready_book()
    first = make_run(book)
    book.start(first, 0.0)
    assert refusal(book.start(make_run(book, handle=2), 0.0)) == "LEASE_LOST"
    assert expect(book) == [LeaseStarted("l1"), AddSequence(first.spec)]


def test_a_handle_used_twice_ends_both_runs_and_only_the_second_is_told():
    book = ready_book()
    run = running(book)
    effects = book.start(make_run(book, lease="l2"), 0.0)
    assert effects[0] == CancelSequence(run.seq_id)
    assert refusal(effects) == "START_INVALID"
    [ended, released] = book.stepped(StepResult(2, cancelled=[Cancelled(run.seq_id, 0, 1)]), 0.0, 1.0)
    assert not ended.answers
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
        ({"prompt": 61, "output": 4}, "PROMPT_TOO_LONG"),
        ({"deadline": 0.0}, "DEADLINE"),
    ],
)
def test_a_start_that_can_never_run_is_refused_and_its_lease_released(what, reason):
    book = ready_book()
    expect(book)
    started, ended, released = book.start(make_run(book, **what), 0.0)
    assert (started, ended.outcome.reason, released) == (LeaseStarted("l1"), reason, LeasesReleased(("l1",)))
    assert book.is_idle


def test_a_token_id_outside_the_vocabulary_never_reaches_the_engine():
    book = ready_book()
    expect(book)
    run = make_run(book)
    run.spec.token_ids.append(100)
    assert refusal(book.start(run, 0.0)) == "START_INVALID"


def test_a_prompt_beyond_all_kv_blocks_is_refused_with_the_numbers():
    book = RunBook(leases=LeaseBook("me"))
    book.engine_ready(Limits(context_length=1000, vocabulary=1000, blocks=16, block_size=4))
    book.open_stream(EDGE)
    expect(book)
    ended = book.start(make_run(book, prompt=61, output=4), 0.0)[1]
    assert ended.outcome.reason == "PROMPT_TOO_LONG"
    assert ended.outcome.metadata == {"prompt_tokens": "61", "kv_blocks_needed": "17", "kv_blocks": "16"}


def test_one_step_makes_one_group_of_tokens_per_stream():
    book = ready_book()
    book.open_stream(8)
    first, second = running(book), running(book, handle=2, lease="l2", ticket="t2")
    other = running(book, lease="l3", ticket="t3", stream=8)
    here, there = book.stepped(step_of(1, first, other, second), 0.0, 1.0)
    assert here == Tokens(EDGE, 1, [1, 2], [11, 11], [0, 0], [-0.5, -0.5])
    assert there == Tokens(8, 1, [1], [11], [0], [-0.5])


def test_logprobs_are_marked_when_one_run_of_the_stream_asked():
    book = ready_book()
    runs = [running(book), running(book, handle=2, lease="l2", ticket="t2", sampling=SamplingParams(logprobs=True))]
    [tokens] = book.stepped(step_of(1, *runs), 0.0, 1.0)
    assert tokens.has_logprobs


def test_the_three_times_add_up_to_the_time_from_start_to_last_token():
    book = ready_book()
    run = running(book)
    book.stepped(StepResult(1, admitted=[(run.seq_id, 2)]), 0.5, 1.0)
    book.stepped(step_of(2, run), 1.0, 2.0)
    ended = book.stepped(step_of(3, run, finished=[Finished(run.seq_id, FinishReason.LENGTH, 2, 2)]), 2.0, 4.0)[1]
    assert run.times(ended.at) == (0.5, 1.5, 2.0)
    assert run.cached_tokens == 2


def test_a_cancel_is_answered_once_the_engine_let_go():
    book = ready_book()
    run = running(book)
    assert book.cancel(EDGE, 1, 0.0) == [CancelSequence(run.seq_id)]
    assert book.cancel(EDGE, 1, 0.0) == []
    assert book.stepped(step_of(1, run), 0.0, 1.0) == []  # a token made meanwhile is not sent, and counted
    ended, released = book.stepped(StepResult(2, cancelled=[Cancelled(run.seq_id, 1, 2)]), 1.0, 2.0)
    assert (ended.outcome, ended.step, ended.answers) == (Cancelled(run.seq_id, 1, 2), 2, True)
    assert released == LeasesReleased(("l1",), (Served("l1", 3, 1, 1.0),))
    assert (book.counts.cancels, book.counts.tokens_wasted_after_cancel) == (1, 1)
    assert run.asked == Asked(at=0.0, step=0)  # from which the log tells how soon it was over
    assert book.is_idle


def test_what_was_made_before_the_engine_was_told_is_not_wasted_though_it_is_heard_of_later():
    book = ready_book()
    run = running(book)
    book.cancel(EDGE, 1, 0.0)
    book.told(run.seq_id, 1.5)
    for number in (1, 2):
        book.stepped(step_of(number, run), number - 1.0, float(number))
    book.stepped(StepResult(3, cancelled=[Cancelled(run.seq_id, 2, 2)]), 2.0, 3.0)
    assert (run.tokens, run.wasted, book.counts.tokens_wasted_after_cancel) == (2, 1, 1)


def test_a_cancel_that_comes_too_late_still_gets_its_receipt():
    book = ready_book()
    run = running(book)
    book.cancel(EDGE, 1, 0.0)
    ended, _ = book.stepped(step_of(1, run, finished=[Finished(run.seq_id, FinishReason.STOP, 1, 0)]), 0.0, 1.0)
    assert ended.outcome == Cancelled(run.seq_id, 1, 0)


def test_a_cancelled_run_that_still_waits_for_its_lease_stops_at_once():
    book = ready_book()
    book.start(make_run(book), 0.0)
    [ended] = book.cancel(EDGE, 1, 0.0)
    assert ended.outcome[1:] == (0, 0)
    assert book.is_idle
    assert book.cancel(EDGE, 1, 0.0) == []


def test_a_cancel_of_an_unknown_handle_is_ignored():
    assert ready_book().cancel(EDGE, 99, 0.0) == []


def test_a_lost_stream_takes_its_runs_out_of_the_engine_and_no_other():
    book = ready_book()
    book.open_stream(8)
    run, other = running(book), running(book, lease="l2", ticket="t2", stream=8)
    book.start(make_run(book, handle=5, lease="never"), 0.0)
    effects = book.close_stream(EDGE, 0.0)
    assert [each for each in effects if not isinstance(each, Ended)] == [CancelSequence(run.seq_id)]
    assert not any(each.answers for each in effects if isinstance(each, Ended))
    [ended, _] = book.stepped(StepResult(1, cancelled=[Cancelled(run.seq_id, 0, 1)]), 0.0, 1.0)
    assert not ended.answers
    assert set(book.running) == {other.seq_id}


def test_a_run_past_its_deadline_is_taken_out_and_refused():
    book = ready_book()
    run = running(book, deadline=3.0)
    assert book.next_expiry == 3.0
    assert book.expire(3.0) == [CancelSequence(run.seq_id)]
    effects = book.stepped(StepResult(1, cancelled=[Cancelled(run.seq_id, 0, 1)]), 3.0, 3.1)
    assert refusal(effects) == "DEADLINE"


def test_a_run_whose_last_tokens_were_held_back_has_not_finished():
    book = ready_book()
    run = running(book, deadline=3.0)
    book.expire(3.0)
    done = Finished(run.seq_id, FinishReason.STOP, 1, 0)
    assert refusal(book.stepped(step_of(1, run, finished=[done]), 3.0, 3.1)) == "DEADLINE"


def test_a_parked_start_falls_to_its_deadline_first():
    book = ready_book(park_for=1.0)
    book.start(make_run(book, deadline=0.5), 0.0)
    assert refusal(book.expire(0.5)) == "DEADLINE"


def test_a_revoked_lease_is_refused_before_and_after_its_start():
    book = ready_book()
    expect(book)
    assert book.revoke("l1", 0.0) == []
    assert refusal(book.start(make_run(book), 0.0)) == "LEASE_LOST"
    run = running(book, handle=2, lease="l2", ticket="t2")
    assert book.revoke("l2", 0.0) == [CancelSequence(run.seq_id)]
    assert refusal(book.stepped(StepResult(1, cancelled=[Cancelled(run.seq_id, 0, 1)]), 0.0, 1.0)) == "LEASE_LOST"


def test_nothing_starts_before_the_model_is_loaded():
    book = RunBook(leases=LeaseBook("me"))
    book.open_stream(EDGE)
    assert refusal(book.start(make_run(book), 0.0)) == "LOADING"


def test_a_dead_engine_ends_every_run_and_the_next_one_starts_anew():
    book = ready_book()
    run, leaving = running(book), running(book, handle=2, lease="l2", ticket="t2")
    book.start(make_run(book, handle=3, lease="l3"), 0.0)
    book.cancel(EDGE, 2, 0.0)
    effects = book.engine_lost(refusals.engine_died(), 1.0)
    over = [each for each in effects if isinstance(each, Ended)]
    outcomes = {each.run.handle: each.outcome for each in over}
    assert {each.run.handle for each in over if each.run.was_given} == {1, 2}
    assert [outcomes[handle].reason for handle in (1, 3)] == ["ENGINE_DIED", "ENGINE_DIED"]
    assert outcomes[2] == Cancelled(leaving.seq_id, 0, 0)
    assert effects[-1] == LeasesReleased(("l1", "l2"))
    assert book.is_idle
    expect(book, "l4", "t4")
    assert refusal(book.start(make_run(book, lease="l4", ticket="t4"), 1.0)) == "ENGINE_DIED"
    book.engine_ready(LIMITS)
    assert running(book, lease="l5", ticket="t5").seq_id > run.seq_id


def crash(book, now=1.0):
    """Return how runs ended at a crash, by handle."""
    effects = book.engine_lost(refusals.engine_died(), now, crashed=True)
    return {each.run.handle: each.outcome.reason for each in effects if isinstance(each, Ended)}


def made(book, *runs, step=1):
    """A step that makes a token, 40, for each of the runs."""
    each = [run.seq_id for run in runs]
    result = StepResult(
        step, seq_ids=each, tokens=[40] * len(runs), indexes=[0] * len(runs), logprobs=[0.0] * len(runs)
    )
    return book.stepped(result, 1.0, 2.0)


def test_the_run_that_crashes_an_engine_again_is_found_and_the_others_go_on():
    book = ready_book()
    old = running(book)
    made(book, old)
    poison, innocent = (running(book, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (2, 3))
    assert crash(book) == {1: "ENGINE_DIED"}  # it was under way: what is new is likelier to blame
    [tried] = book.engine_ready(LIMITS)
    assert (tried.spec.seq_id, tried.spec.token_ids) == (poison.seq_id, [0, 1, 2])
    assert book.closed, "nobody else may be beside it"
    assert crash(book) == {2: "ENGINE_CRASHED"}
    assert book.engine_ready(LIMITS) == [AddSequence(innocent.spec)]
    made(book, innocent)
    assert book.closed is None
    assert list(book.running.values()) == [innocent]


def test_where_no_prompt_was_being_worked_on_each_run_is_tried_with_what_it_made():
    book = ready_book()
    runs = [running(book, handle=h, lease=f"l{h}", ticket=f"t{h}") for h in (1, 2)]
    made(book, *runs)
    assert crash(book) == {}
    assert book.engine_ready(LIMITS) == [AddSequence(runs[0].spec)]
    spec = runs[0].spec
    assert (spec.token_ids, spec.emitted, spec.max_output_tokens) == ([0, 1, 2, 40], 1, 3)
    tokens, tried = made(book, runs[0])
    assert tokens.handles == [1]
    assert tried == AddSequence(runs[1].spec)
    assert crash(book) == {1: "ENGINE_DIED", 2: "ENGINE_CRASHED"}
    assert book.is_idle


def test_the_end_of_a_run_that_was_tried_counts_all_that_it_made():
    book = ready_book()
    run = running(book)
    made(book, run)
    crash(book)
    book.engine_ready(LIMITS)
    last = StepResult(1, seq_ids=[run.seq_id], tokens=[41], indexes=[1], logprobs=[0.0])
    last.finished = [Finished(run.seq_id, FinishReason.STOP, 1, 0)]
    _, ended, _ = book.stepped(last, 1.0, 2.0)
    assert ended.outcome.output_tokens == 2
    assert book.closed is None
    assert book.is_idle


def test_what_is_held_after_a_crash_can_be_cancelled_and_does_not_wait_for_ever():
    book = ready_book(hold_for=5.0)
    for handle, deadline in ((1, 3.0), (2, 100.0), (3, 100.0)):
        running(book, handle=handle, lease=f"l{handle}", ticket=f"t{handle}", deadline=deadline)
    assert crash(book, now=1.0) == {}
    ended, _ = book.cancel(EDGE, 3, 1.5)
    assert ended.outcome.output_tokens == 0
    assert refusal(book.expire(3.0)) == "DEADLINE"
    assert refusal(book.expire(6.0)) == "ENGINE_DIED"
    assert book.is_idle
    assert book.engine_ready(LIMITS) == []
    assert book.closed is None


def test_an_engine_killed_from_outside_leaves_no_suspicion():
    book = ready_book()
    running(book)
    book.engine_lost(refusals.engine_died(), 1.0)
    assert not book.probation


def test_what_the_engine_refuses_is_refused():
    book = ready_book()
    run = running(book)
    ended, released = book.engine_refused(run.seq_id, refusals.too_late(), 0.0)
    assert ended.answers
    assert released == LeasesReleased(("l1",))


def test_a_draining_worker_starts_what_was_granted_and_nothing_else():
    book = ready_book()
    book.start(make_run(book), 0.0)
    expect(book, "l2", "t2")
    assert refusal(book.drain(0.0)) == "DRAINING"
    assert not book.is_idle  # the granted lease may still be started
    assert refusal(book.start(make_run(book, lease="l3"), 0.0)) == "DRAINING"
    assert book.start(make_run(book, lease="l2", ticket="t2"), 0.0)[0] == LeaseStarted("l2")


def test_progress_is_all_that_was_made_so_far_told_where_it_is_news_and_not_too_often():
    book = ready_book()
    run = running(book, prompt=10)
    book.stepped(StepResult(1, admitted=[Admitted(run.seq_id, 4)], prefilled=[Prefilled(run.seq_id, 5)]), 0.0, 0.0)
    assert book.progress(1.0) == [Served("l1", 5, 0)]
    book.stepped(step_of(2, run), 1.0, 1.1)
    assert book.progress(1.1) == []
    assert book.progress(1.25) == [Served("l1", 6, 1, 1.1)]
    assert book.progress(2.0) == []


def test_a_prompt_that_is_computed_again_after_a_preemption_is_served_once():
    book = ready_book()
    run = running(book, prompt=10)
    for number in (1, 2):
        book.stepped(StepResult(number, prefilled=[Prefilled(run.seq_id, 8)]), 0.0, 0.0)
    assert book.progress(1.0) == [Served("l1", 10, 0)]


def test_the_end_of_a_run_tells_all_that_it_was_served():
    book = ready_book()
    run = running(book)
    book.stepped(step_of(1, run), 0.0, 0.0)
    assert book.progress(1.0) == [Served("l1", 3, 1, 0.0)]
    last = book.stepped(step_of(2, run, finished=[Finished(run.seq_id, FinishReason.STOP, 2, 0)]), 1.0, 1.1)
    assert last[-1] == LeasesReleased(("l1",), (Served("l1", 3, 2, 0.0),))


def test_a_run_knows_from_which_attempt_and_shard_it_came():
    run = running(ready_book())
    assert (run.attempt, run.queue_id) == (2, "q")


class AnyOrder(RuleBasedStateMachine):
    """Edges, a scheduler, an engine (the real batch) and the clock, in any order."""

    def __init__(self):
        super().__init__()
        self.book = RunBook(leases=LeaseBook("me"), park_for=1.0, max_parked=3)
        self.now = 0.0
        self.ended = Counter()
        self.begun = []  # runs, as started
        self.sent = {}  # by run: indexes of the tokens sent
        self.started, self.released = Counter(), Counter()
        self.prompts, self.outputs = Counter(), Counter()  # told, by lease
        self.open, self.all_streams = set(), 0
        self.load()

    def load(self):
        pool = BlockPool(LIMITS.blocks, LIMITS.block_size)
        self.batch = Batch(pool=pool, batching=Continuous(token_budget=8), slots=3, context_length=64)
        self.perform(self.book.engine_ready(LIMITS))

    def perform(self, effects):
        for effect in effects:
            if isinstance(effect, AddSequence):
                self.batch.add(effect.spec)
            elif isinstance(effect, CancelSequence):
                self.batch.cancel(effect.seq_id)
            elif isinstance(effect, Tokens):
                self.note_tokens(effect)
            elif isinstance(effect, Ended):
                self.ended[effect.run] += 1
                assert effect.answers <= (effect.run.stream in self.open)
            elif isinstance(effect, LeaseStarted):
                self.started[effect.lease_id] += 1
            else:
                self.released.update(effect.lease_ids)
                assert {each.lease_id for each in effect.served} <= set(effect.lease_ids)
                self.note_served(effect.served)

    def note_served(self, served):
        for each in served:
            assert each.is_any
            assert each.prompt_tokens >= self.prompts[each.lease_id]
            self.prompts[each.lease_id] = each.prompt_tokens
            self.outputs[each.lease_id] = each.output_tokens

    def note_tokens(self, tokens):
        assert tokens.stream in self.open
        for handle, index in zip(tokens.handles, tokens.indexes, strict=True):
            run = self.book.streams[tokens.stream].get(handle) or self.finished_now(tokens.stream, handle)
            self.sent.setdefault(run, []).append(index)

    def finished_now(self, stream, handle):
        """Its tokens come before its end, but the book has taken it off the stream already."""
        runs = [run for run in self.begun if (run.stream, run.handle) == (stream, handle)]
        return runs[-1]

    @rule()
    def open_stream(self):
        self.all_streams += 1
        self.open.add(self.all_streams)
        self.book.open_stream(self.all_streams)

    @precondition(lambda self: self.open)
    @rule(pick=st.randoms())
    def close_stream(self, pick):
        stream = pick.choice(sorted(self.open))
        self.open.discard(stream)
        self.perform(self.book.close_stream(stream, self.now))

    @rule(number=st.integers(0, 12), worker=st.sampled_from(["me", "me", "me", "another"]))
    def expect(self, number, worker):
        self.perform(self.book.expect(f"l{number}", Grant(f"t{number}"), worker, self.now + 2.0, self.now))

    @rule(number=st.integers(0, 12))
    def revoke(self, number):
        self.perform(self.book.revoke(f"l{number}", self.now))

    @precondition(lambda self: self.open)
    @rule(
        pick=st.randoms(),
        number=st.integers(0, 12),
        handle=st.integers(1, 4),
        prompt=st.integers(0, 40),
        output=st.integers(1, 30),
        patience=st.sampled_from([0.0, 0.5, 3.0, float("inf")]),
    )
    def start(self, *, pick, number, handle, prompt, output, patience):
        run = make_run(
            self.book,
            handle=handle,
            lease=f"l{number}",
            ticket=f"t{number}",
            prompt=prompt,
            output=output,
            deadline=self.now + patience,
            stream=pick.choice(sorted(self.open)),
        )
        self.begun.append(run)
        self.perform(self.book.start(run, self.now))

    @precondition(lambda self: self.open)
    @rule(pick=st.randoms(), handle=st.integers(1, 4))
    def cancel(self, pick, handle):
        self.perform(self.book.cancel(pick.choice(sorted(self.open)), handle, self.now))

    @rule(passed=st.sampled_from([0.1, 1.0, 5.0]))
    def wait(self, passed):
        self.now += passed
        self.perform(self.book.expire(self.now))

    @rule()
    def step(self):
        if self.batch.has_work:
            plan = self.batch.plan()
            count = len(plan.sampled)
            result = self.batch.commit(plan, [5] * count, [0.0] * count)
            self.perform(self.book.stepped(result, self.now, self.now))

    @rule()
    def tell_progress(self):
        self.note_served(self.book.progress(self.now))

    @rule(crashed=st.booleans(), patience=st.sampled_from([0.0, 0.0, 1.0, 60.0]))
    def lose_engine(self, crashed, patience):
        self.perform(self.book.engine_lost(refusals.engine_died(), self.now, crashed=crashed))
        self.wait(patience)
        self.load()

    @invariant()
    def nobody_is_beside_the_one_that_is_tried_who_was_not_acquitted(self):
        probation = self.book.probation
        assert bool(self.book.closed) == bool(probation)
        assert not any(run in self.book.running.values() for run in probation.held)

    @invariant()
    def nothing_ends_twice(self):
        assert all(count == 1 for count in self.ended.values())

    @invariant()
    def tokens_come_in_order_and_once(self):
        assert all(indexes == list(range(len(indexes))) for indexes in self.sent.values())

    def teardown(self):
        self.perform(self.book.drain(self.now))
        for _ in range(2_000):
            self.step()
        self.wait(100.0)
        self.step()
        assert repr(self.book) == f"<RunBook 0 expected, 0 parked, 0 running on {len(self.open)} streams>"
        assert self.book.next_expiry is None
        assert not any(self.book.streams.values())
        assert self.batch.pool.used == 0
        assert set(self.ended) == set(self.begun)
        assert all(self.started[lease] == 1 for lease in self.started)
        assert set(self.started) <= set(self.released)
        assert sum(self.outputs.values()) == sum(run.tokens for run in self.begun)
        assert sum(self.prompts.values()) == sum(run.prefilled for run in self.begun)
        for run in self.begun:
            prompt = (run.asked_for or run.spec).token_ids
            assert run.prefilled == len(prompt) if run.tokens else run.prefilled <= len(prompt)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
