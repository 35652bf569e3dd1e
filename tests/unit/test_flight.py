"""A request's way through the mesh: whatever order the news come in, one ending, one settlement, each token once."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.chassis.errors import (
    Aborted,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Overloaded,
    QuotaExceeded,
    Unavailable,
)
from penstock.edge.flight.effects import (
    Accept,
    Cancelled,
    CancelRun,
    Emit,
    Enqueue,
    Fail,
    Finish,
    Reserve,
    Settle,
    StartRun,
    Withdraw,
)
from penstock.edge.flight.flight import Flight
from penstock.edge.flight.plan import Piece, Plan
from penstock.edge.flight.state import FlightLimits, State
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Sampling

LIMITS = FlightLimits(max_attempts=3, patience=10.0, receipt_timeout=5.0)
DEADLINE = 100.0
ENDINGS = (Finish, Fail, Cancelled)
TIMES = RunTimes(wait=timedelta(seconds=1), prefill=timedelta(seconds=2), decode=timedelta(seconds=3))
EOS = 7


class Letters:
    """Writes each token as a letter, ends at the letter `stop`, and holds the last one back."""

    def __init__(self, stop=""):
        self.stop = stop
        self.held = ""

    def push(self, token_id):
        text, self.held = self.held, chr(token_id)
        return Piece(text, self.stop) if self.held == self.stop else Piece(text)

    def finish(self):
        text, self.held = self.held, ""
        return text


PLAN = Plan(
    model="tiny",
    prompt_ids=[1, 2, 3],
    max_output_tokens=6,
    sampling=Sampling(seed=1),
    transcript=Letters(),
    eos_ids=frozenset({EOS}),
)


def plan(**changes):
    return replace(PLAN, **{"transcript": Letters(), **changes})


def new_flight():
    return Flight("t1", arrived=0.0, deadline=DEADLINE, limits=LIMITS)


def queued_flight(**changes):
    flight = new_flight()
    assert flight.tokenized(plan(**changes), 1.0) == [Reserve()]
    assert flight.admitted(Identity(tenant_id="acme"), "r1", 2.0) == [Enqueue()]
    return flight


def lease(attempt=1, worker="w1"):
    return Lease(
        lease_id=f"l{attempt}",
        worker_id=worker,
        attempt=attempt,
        ttl=timedelta(seconds=4),
        queue_wait=timedelta(seconds=5),
        placement=timedelta(seconds=1),
    )


def running_flight(**changes):
    flight = queued_flight(**changes)
    assert flight.queued() == [Accept()]
    assert flight.leased(lease(), 10.0) == [StartRun(lease())]
    assert flight.started() == []
    return flight


def give(flight, text, now=12.0):
    """Make the worker send `text`, a token per letter, and return what the client gets."""
    got = []
    for letter in text:
        got += flight.token(len(flight.answer.ids), ord(letter), None, now)
    return got


def test_a_request_that_nothing_disturbs_is_reserved_queued_run_and_settled():
    flight = running_flight()
    assert give(flight, "ab") == [Emit("", (ord("a"),), 0, ()), Emit("a", (ord("b"),), 1, ())]
    assert flight.run_finished(FINISH_REASON_STOP, 2, 2, TIMES, 20.0) == [
        Emit("b", (), 2, ()),
        Finish(FINISH_REASON_STOP, ""),
        Settle(3, 2, "stop"),
    ]
    assert flight.is_done
    assert flight.cached_prompt_tokens == 2


def test_stages_touch_and_add_up_to_the_total_exactly():
    flight = running_flight()
    give(flight, "ab", now=18.5)
    flight.run_finished(FINISH_REASON_LENGTH, 2, 0, TIMES, 20.25)
    timeline = flight.timeline.message(trace_id="t", worker_id="w1", attempts=1)
    stages = [(stage.tier, stage.name, stage.length.ToTimedelta().total_seconds()) for stage in timeline.stages]
    assert stages == [
        ("edge", "tokenize", 1.0),
        ("auth", "admission", 1.0),
        ("queue", "wait", 5.0),
        ("scheduler", "placement", 1.0),
        ("network", "dispatch", 4.5),
        ("worker", "wait", 1.0),
        ("worker", "prefill", 2.0),
        ("worker", "decode", 3.0),
        ("edge", "finish", 1.75),
    ]
    assert timeline.total.ToTimedelta().total_seconds() == sum(length for _, _, length in stages) == 20.25


def test_stages_add_up_even_when_others_claim_more_time_than_there_was():
    flight = running_flight()
    give(flight, "a", now=11.0)
    flight.run_finished(FINISH_REASON_LENGTH, 1, 0, RunTimes(decode=timedelta(seconds=99)), 11.0)
    assert flight.timeline.total == 11.0
    assert (
        flight.timeline.seconds("worker", "decode") == 3.0
    )  # 11 s less 2 before the queue, 5 in it and 1 of placement
    assert flight.timeline.seconds("network", "dispatch") == 0.0


def test_a_dead_worker_is_avoided_and_the_next_run_goes_on_after_the_last_token():
    flight = running_flight()
    give(flight, "abc")
    first_enqueue = flight.enqueued_at
    assert flight.worker_lost(13.0, died=True) == [Enqueue()]
    assert (flight.attempt, flight.losses.avoided, flight.enqueued_at) == (2, ["w1"], first_enqueue)
    assert flight.answer.ids == [ord("a"), ord("b"), ord("c")]
    assert flight.queued() == []  # accepted once
    assert flight.leased(lease(2, "w2"), 14.0) == [StartRun(lease(2, "w2"))]
    flight.started()
    assert flight.token(2, ord("c"), None, 15.0) == []
    assert flight.token(3, ord("d"), None, 15.0) == [Emit("c", (ord("d"),), 3, ())]
    assert flight.answer.repeated == 1


def test_a_worker_that_drains_is_left_without_being_avoided():
    flight = running_flight()
    assert flight.worker_lost(13.0, died=False) == [Enqueue()]
    assert flight.losses.avoided == []


@pytest.mark.parametrize("reason", ["LEASE_LOST", "DRAINING"])
def test_a_refused_run_is_tried_elsewhere(reason):
    flight = running_flight()
    error = Aborted("", reason=reason) if reason == "LEASE_LOST" else Unavailable("", reason=reason)
    assert flight.run_refused(error, 11.0) == [Enqueue()]
    assert (flight.attempt, flight.losses.avoided) == (2, [])


def test_a_worker_whose_engine_died_under_the_request_is_avoided():
    flight = running_flight()
    assert flight.run_refused(Unavailable("", reason="ENGINE_DIED"), 11.0) == [Enqueue()]
    assert flight.losses.avoided == ["w1"]


def test_a_run_refused_for_good_fails_the_request_and_charges_nothing():
    flight = running_flight()
    error = InvalidArgument("too long", reason="PROMPT_TOO_LONG")
    assert flight.run_refused(error, 11.0) == [Fail(error), Settle(0, 0, "failed")]


def test_a_worker_that_never_ran_it_costs_no_attempt_and_is_not_asked_again_at_once():
    flight, now = running_flight(), 11.0
    starting_anew = Unavailable("", reason="ENGINE_DIED")
    assert flight.run_refused(starting_anew, now, never_ran=True) == [Enqueue()]
    for attempt in range(2, 3 * LIMITS.max_attempts):
        flight.leased(lease(attempt), now)
        flight.started()
        assert flight.run_refused(starting_anew, now, never_ran=True) == []
        assert flight.tick(now + LIMITS.retry / 2) == []
        now += LIMITS.retry
        assert flight.tick(now) == [Enqueue()]
    assert flight.losses.count == 0


def test_attempts_are_bounded():
    flight = running_flight()
    give(flight, "a")
    for attempt in (2, 3):
        assert flight.worker_lost(20.0, died=True) == [Enqueue()]
        flight.leased(lease(attempt), 20.0)
        flight.started()
    fail, settle = flight.worker_lost(21.0, died=True)
    assert fail.error.reason == "ATTEMPTS_EXHAUSTED"
    assert settle == Settle(3, 1, "failed")


@pytest.mark.parametrize(
    ("text", "reason", "outcome"), [("abcdef", FINISH_REASON_LENGTH, "length"), ("ab\x07", FINISH_REASON_STOP, "stop")]
)
def test_a_worker_that_dies_after_the_last_token_costs_nothing(text, reason, outcome):
    flight = running_flight()
    give(flight, text)
    held, finish, settle = flight.worker_lost(13.0, died=True)
    assert held.text == text[-1]
    assert finish == Finish(reason, "")
    assert settle == Settle(3, len(text), outcome)


def test_a_gap_in_the_tokens_ends_the_run_and_not_the_request():
    flight = running_flight()
    give(flight, "a")
    assert flight.token(2, ord("c"), None, 12.0) == [CancelRun(), Enqueue()]
    assert flight.answer.ids == [ord("a")]


def test_a_stop_string_stops_the_gpu_and_finishes_with_its_receipt():
    flight = running_flight(transcript=Letters(stop="z"))
    assert give(flight, "az") == [Emit("", (ord("a"),), 0, ()), Emit("a", (ord("z"),), 1, ()), CancelRun()]
    assert flight.token(2, ord("b"), None, 12.5) == []
    assert flight.stopped(3, 9, TIMES, 13.0) == [Finish(FINISH_REASON_STOP, "z"), Settle(3, 2, "stop")]


def test_a_cancel_before_the_run_withdraws_the_ticket_and_gives_the_reservation_back():
    flight = queued_flight()
    assert flight.client_left(3.0) == [Withdraw(), Cancelled(0, 0, 0.0, has_receipt=False), Settle(0, 0, "cancelled")]
    assert flight.client_left(3.0) == []


def test_a_lease_for_a_client_that_left_is_not_started():
    flight = queued_flight()
    flight.client_left(3.0)
    assert flight.leased(lease(), 4.0) == [Withdraw()]


def test_a_cancel_during_the_run_waits_for_the_receipt_and_charges_what_was_made():
    flight = running_flight()
    give(flight, "ab")
    assert flight.client_left(13.0) == [CancelRun()]
    assert flight.token(2, ord("c"), None, 13.1) == []
    assert flight.stopped(3, 9, TIMES, 13.25) == [
        Cancelled(3, 9, 0.25, has_receipt=True),
        Settle(3, 3, "cancelled"),
    ]


def test_a_cancel_whose_worker_dies_is_over_all_the_same():
    flight = running_flight()
    give(flight, "ab")
    flight.client_left(13.0)
    assert flight.worker_lost(14.0, died=True) == [
        Cancelled(2, 0, 1.0, has_receipt=False),
        Settle(3, 2, "cancelled"),
    ]


def test_a_cancel_that_is_never_answered_is_over_after_the_receipt_timeout():
    flight = running_flight()
    flight.client_left(13.0)
    assert flight.tick(17.9) == []
    assert flight.wake_at == 18.0
    assert [type(effect) for effect in flight.tick(18.0)] == [Cancelled, Settle]


def test_a_cancel_while_auth_is_asked_gives_back_what_auth_grants_later():
    flight = new_flight()
    flight.tokenized(plan(), 1.0)
    assert flight.client_left(1.5) == [Cancelled(0, 0, 0.0, has_receipt=False)]
    assert flight.auth_up() == [Reserve()]  # the first ask may have been granted and its answer lost
    assert flight.admitted(Identity(), "r1", 2.0) == [Settle(0, 0, "cancelled")]
    assert flight.admitted(Identity(), "r1", 2.0) == []


def test_a_refused_key_ends_the_request_with_nothing_to_settle():
    flight = new_flight()
    flight.tokenized(plan(), 1.0)
    error = QuotaExceeded("over")
    assert flight.refused(error, 2.0) == [Fail(error)]
    assert flight.is_done


def test_a_shed_ticket_fails_with_the_queues_own_words():
    flight = queued_flight()
    error = Overloaded("full", retry_after=2.0)
    assert flight.shed(error, 3.0) == [Fail(error), Settle(0, 0, "shed")]


def test_half_an_answer_waits_for_a_worker_to_come_back():
    flight = running_flight()
    give(flight, "a")
    flight.worker_lost(13.0, died=False)
    assert flight.shed(Unavailable("", reason="NO_WORKER", retry_after=2.0), 14.0) == []
    assert flight.wake_at == 16.0
    assert flight.tick(16.0) == [Enqueue()]
    assert flight.shed(Unavailable("", reason="NO_WORKER"), 17.0) == []
    assert flight.wake_at == 17.25
    error = Unavailable("", reason="NO_WORKER", retry_after=8.0)
    assert flight.shed(error, 17.0) == [Fail(error), Settle(3, 1, "shed")]  # 8 s more would pass the patience


def test_a_worker_whose_stream_broke_is_asked_again_when_there_is_no_other():
    flight = running_flight()
    flight.worker_lost(13.0, died=True)
    error = Unavailable("", reason="NO_WORKER", retry_after=2.0)
    assert flight.shed(error, 14.0) == [Enqueue()]
    assert flight.losses.avoided == []
    assert flight.shed(error, 15.0) == []  # that nobody is there is another matter: it is waited for
    assert flight.wake_at == 17.0


def test_a_new_request_hears_at_once_that_nobody_can_serve_it():
    flight = queued_flight()
    error = Unavailable("", reason="NO_WORKER", retry_after=2.0)
    assert flight.shed(error, 3.0) == [Fail(error), Settle(0, 0, "shed")]


def test_a_reason_that_is_over_in_a_moment_is_waited_out():
    flight = queued_flight()
    assert flight.shed(NotFound("", reason="MODEL_UNKNOWN"), 3.0, is_passing=True) == []
    assert flight.wake_at == 3.25
    assert flight.tick(3.25) == [Enqueue()]


def test_a_lost_queue_means_another_one():
    flight = queued_flight()
    assert flight.queue_lost() == [Enqueue()]
    assert flight.attempt == 1
    assert flight.stranded(5.0) == []
    assert flight.wake_at == 15.0
    assert flight.queue_lost() == [Enqueue()]
    flight.queued()
    assert flight.wake_at == DEADLINE


def test_no_queue_at_all_is_waited_for_with_patience():
    flight = queued_flight()
    flight.stranded(5.0)
    withdraw, fail, settle = flight.tick(15.0)
    assert (withdraw, fail.error.reason, settle) == (Withdraw(), "QUEUE_LOST", Settle(0, 0, "failed"))


def test_a_lease_that_cannot_be_started_in_time_is_given_up():
    flight = queued_flight()
    flight.leased(lease(), 10.0)
    assert flight.wake_at == 14.0
    assert flight.tick(14.0) == [Withdraw(), Enqueue()]
    assert flight.attempt == 2


def test_a_lease_of_an_earlier_attempt_is_left_to_lapse():
    flight = running_flight()
    flight.worker_lost(11.0, died=True)
    assert flight.leased(lease(1), 12.0) == []
    assert flight.state is State.QUEUED


@pytest.mark.parametrize("make", [queued_flight, running_flight])
def test_the_deadline_ends_a_request_wherever_it_is(make):
    flight = make()
    effects = flight.tick(DEADLINE)
    assert [effect.error.code for effect in effects if isinstance(effect, Fail)] == [DeadlineExceeded.code]
    effects += flight.stopped(0, 0, RunTimes(), DEADLINE + 1)
    assert effects[-1] == Settle(0, 0, "failed")


def test_a_resumed_answer_is_numbered_on_and_its_first_part_not_charged_again():
    flight = running_flight(resumed_ids=[ord("a"), ord("b")])
    assert flight.token(2, ord("c"), None, 11.0) == [Emit("", (ord("c"),), 2, ())]
    *_, settle = flight.run_finished(FINISH_REASON_STOP, 1, 0, TIMES, 12.0)
    assert settle == Settle(3, 1, "stop")


def test_a_resumed_answer_that_was_complete_needs_no_run():
    flight = new_flight()
    flight.tokenized(plan(resumed_ids=[ord("a"), EOS]), 1.0)
    assert flight.admitted(Identity(), "r1", 2.0) == [Accept(), Finish(FINISH_REASON_STOP, ""), Settle(0, 0, "stop")]


def test_a_resumed_answer_that_was_complete_still_tells_the_text_that_was_held_back():
    flight, letters = new_flight(), Letters()
    letters.push(ord("a"))  # as the client's tokens are pushed before the flight begins
    flight.tokenized(plan(transcript=letters, resumed_ids=[ord("a")], max_output_tokens=1), 1.0)
    told = flight.admitted(Identity(), "r1", 2.0)
    assert told == [Accept(), Emit("a", (), 1, ()), Finish(FINISH_REASON_LENGTH, ""), Settle(0, 0, "length")]


class AnyOrder(RuleBasedStateMachine):
    """The world at its worst: every call at any time, in any order, any number of times."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.flight = new_flight()
        self.emitted = []
        self.endings = []
        self.settles = []
        self.was_admitted = False

    def take(self, effects):
        for effect in effects:
            if isinstance(effect, Emit):
                assert not self.endings, "text after the ending"
                assert effect.first_index == len(self.emitted)
                self.emitted += effect.token_ids
            self.endings += [effect] if isinstance(effect, ENDINGS) else []
            self.settles += [effect] if isinstance(effect, Settle) else []
            if isinstance(effect, StartRun):
                assert not self.endings, "a run for nobody"

    @initialize(stop=st.sampled_from(["", "d"]))
    def tokenize(self, stop):
        self.stop = stop
        self.take(self.flight.tokenized(plan(transcript=Letters(stop)), self.now))

    @rule(seconds=st.sampled_from([0.0, 0.5, 4.0, 10.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.take(self.flight.tick(self.now))

    @rule()
    def admitted(self):
        self.was_admitted |= self.flight.state is State.RESERVING
        self.take(self.flight.admitted(Identity(), "r1", self.now))

    @rule()
    def refused(self):
        self.take(self.flight.refused(QuotaExceeded(""), self.now))

    @rule(call=st.sampled_from(["auth_up", "queued", "queue_lost", "started"]))
    def news(self, call):
        self.take(getattr(self.flight, call)())

    @rule()
    def stranded(self):
        self.take(self.flight.stranded(self.now))

    @rule(reason=st.sampled_from(["OVERLOADED", "NO_WORKER"]))
    def shed(self, reason):
        self.take(self.flight.shed(Unavailable("", reason=reason, retry_after=1.0), self.now))

    @rule(attempt=st.integers(1, 3), start=st.booleans())
    def leased(self, attempt, start):
        self.take(self.flight.leased(lease(attempt, f"w{attempt}"), self.now))
        if start:
            self.take(self.flight.started())

    @rule()
    def a_run_begins(self):
        """As it should be, so that what follows meets a running request often enough."""
        self.admitted()
        self.leased(self.flight.attempt, start=True)

    @rule(offset=st.integers(-2, 1), count=st.integers(1, 3))
    @precondition(lambda self: self.was_admitted)
    def tokens(self, offset, count):
        start = max(0, len(self.flight.answer.ids) + offset)
        for index in range(start, start + count):
            self.take(self.flight.token(index, ord("a") + index, None, self.now))

    @rule(died=st.booleans())
    def worker_lost(self, died):
        self.take(self.flight.worker_lost(self.now, died=died))

    @rule()
    def finished(self):
        self.take(self.flight.run_finished(FINISH_REASON_LENGTH, 1, 1, TIMES, self.now))

    @rule()
    def stopped(self):
        self.take(self.flight.stopped(2, 1, TIMES, self.now))

    @rule(error=st.sampled_from([Aborted("", reason="LEASE_LOST"), InvalidArgument("")]))
    def run_refused(self, error):
        self.take(self.flight.run_refused(error, self.now))

    @rule()
    def client_left(self):
        self.take(self.flight.client_left(self.now))

    @invariant()
    def nothing_happens_twice(self):
        assert len(self.endings) <= 1
        assert len(self.settles) <= 1
        assert self.emitted == [ord("a") + index for index in range(len(self.emitted))]
        assert self.flight.state is not State.DONE or self.endings
        assert self.flight.wake_at >= self.now or not self.flight.is_done

    def teardown(self):
        for _ in range(20):  # time alone ends every flight
            self.now += 1_000.0
            self.take(self.flight.tick(self.now))
        assert self.flight.is_done
        assert len(self.endings) == 1
        assert len(self.settles) == self.was_admitted


AnyOrder.TestCase.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)
test_any_order_of_news_ends_a_request_once_settles_it_once_and_emits_each_token_once = AnyOrder.TestCase
