"""The life of an active request: events, effects, stages, deadlines and resumed answers."""

from datetime import timedelta

import pytest

from active_requests import (
    DEADLINE,
    EOS_ID,
    RUN_TIMES,
    LetterDetokenizer,
    generation_plan,
    lease,
    new_active_request,
    queued_request,
    running_request,
    send_tokens,
)
from penstock.chassis.errors import (
    DeadlineExceeded,
    Overloaded,
    QuotaExceeded,
)
from penstock.edge.lifecycle.active_request import STALL_THRESHOLD_S
from penstock.edge.lifecycle.effects import (
    Accept,
    AcknowledgeCancel,
    CancelRun,
    Emit,
    Enqueue,
    Fail,
    Finish,
    Reserve,
    Settle,
    Withdraw,
)
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP


def test_an_undisturbed_request_is_reserved_queued_run_and_settled():
    request = running_request()
    assert send_tokens(request, "ab") == [Emit("", (ord("a"),), 0, ()), Emit("a", (ord("b"),), 1, ())]
    assert request.on_run_finished(FINISH_REASON_STOP, 2, 2, RUN_TIMES, 20.0) == [
        Emit("b", (), 2, ()),
        Finish(FINISH_REASON_STOP, ""),
        Settle(3, 2, "stop", 2, "w1"),
    ]
    assert request.is_done
    assert request.cached_prompt_tokens == 2


def test_stages_are_consecutive_and_add_up_to_the_total_exactly():
    request = running_request()
    send_tokens(request, "ab", now=18.5)
    request.on_run_finished(FINISH_REASON_LENGTH, 2, 0, RUN_TIMES, 20.25)
    timeline = request.timeline.to_message(trace_id="t", worker_id="w1", attempts=1)
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


def test_stages_add_up_even_if_measured_times_exceed_the_total():
    request = running_request()
    send_tokens(request, "a", now=11.0)
    request.on_run_finished(FINISH_REASON_LENGTH, 1, 0, RunTimes(decode=timedelta(seconds=99)), 11.0)
    assert request.timeline.total == 11.0
    assert (
        request.timeline.seconds("worker", "decode") == 3.0
    )  # 11 s less 2 before the queue, 5 in it and 1 of placement
    assert request.timeline.seconds("network", "dispatch") == 0.0


def test_a_stop_string_stops_the_run_and_finishes_once_acknowledged():
    request = running_request(detokenizer=LetterDetokenizer(stop="z"))
    assert send_tokens(request, "az") == [Emit("", (ord("a"),), 0, ()), Emit("a", (ord("z"),), 1, ()), CancelRun()]
    assert request.on_token(2, ord("b"), None, 12.5) == []
    settle = Settle(3, 2, "stop", 0, "w1")
    assert request.on_run_stopped(3, 9, RUN_TIMES, 13.0) == [Finish(FINISH_REASON_STOP, "z"), settle]


def test_a_cancel_before_the_run_withdraws_the_ticket_and_gives_the_reservation_back():
    request = queued_request()
    assert request.on_client_cancelled(3.0) == [
        Withdraw(),
        AcknowledgeCancel(0, 0, 0.0, is_acknowledged=False),
        Settle(0, 0, "cancelled"),
    ]
    assert request.on_client_cancelled(3.0) == []


def test_a_lease_for_a_cancelled_request_is_not_started():
    request = queued_request()
    request.on_client_cancelled(3.0)
    assert request.on_leased(lease(), 4.0) == [Withdraw()]


def test_a_cancel_during_the_run_waits_for_the_acknowledgement_and_charges_generated_tokens():
    request = running_request()
    send_tokens(request, "ab")
    assert request.on_client_cancelled(13.0) == [CancelRun()]
    assert request.on_token(2, ord("c"), None, 13.1) == []
    assert request.on_run_stopped(3, 9, RUN_TIMES, 13.25) == [
        AcknowledgeCancel(3, 9, 0.25, is_acknowledged=True),
        Settle(3, 3, "cancelled", 0, "w1"),
    ]


def test_a_cancel_that_is_not_acknowledged_ends_after_the_timeout():
    request = running_request()
    request.on_client_cancelled(13.0)
    assert request.tick(17.9) == []
    assert request.next_tick_at == 18.0
    assert [type(effect) for effect in request.tick(18.0)] == [AcknowledgeCancel, Settle]


def test_after_a_stall_the_edge_handles_auths_response_before_it_times_out():
    request = new_active_request()
    request.on_tokenized(generation_plan(), 1.0)
    assert request.tick(40.0) == []
    assert request.next_tick_at == 40.0 + STALL_THRESHOLD_S
    assert request.on_admitted(Identity(), "r1", 40.1) == [Enqueue()]


def test_after_a_stall_the_edge_waits_for_auth_once_and_then_times_out():
    request = new_active_request()
    request.on_tokenized(generation_plan(), 1.0)
    request.tick(40.0)
    (fail,) = request.tick(45.0)
    assert fail.error.reason == "AUTH_LOST"


def test_after_a_stall_the_edge_handles_the_acknowledgement_of_a_cancel():
    request = running_request()
    request.on_client_cancelled(13.0)
    assert request.tick(DEADLINE + 5.0) == []
    assert request.on_run_stopped(2, 9, RUN_TIMES, DEADLINE + 5.1)[-1] == Settle(3, 2, "cancelled", 0, "w1")


def test_a_stall_does_not_extend_a_deadline():
    fail, *_ = queued_request().tick(DEADLINE + 5.0)[1:]
    assert fail.error.code is DeadlineExceeded.code


def test_a_cancel_while_reserving_settles_a_later_grant():
    request = new_active_request()
    request.on_tokenized(generation_plan(), 1.0)
    assert request.on_client_cancelled(1.5) == [AcknowledgeCancel(0, 0, 0.0, is_acknowledged=False)]
    assert request.on_auth_connected() == [
        Reserve()
    ]  # the first reservation may have been granted and its response lost
    assert request.on_admitted(Identity(), "r1", 2.0) == [Settle(0, 0, "cancelled")]
    assert request.on_admitted(Identity(), "r1", 2.0) == []


def test_a_rejected_key_ends_the_request_with_nothing_to_settle():
    request = new_active_request()
    request.on_tokenized(generation_plan(), 1.0)
    error = QuotaExceeded("over")
    assert request.on_auth_rejected(error, 2.0) == [Fail(error)]
    assert request.is_done


def test_a_shed_ticket_fails_with_the_error_of_the_queue():
    request = queued_request()
    error = Overloaded("full", retry_after=2.0)
    assert request.on_queue_rejected(error, 3.0) == [Fail(error), Settle(0, 0, "shed")]


def test_a_request_that_the_queue_would_reject_is_shed_before_tokens_are_reserved():
    request, error = new_active_request(), Overloaded("full", retry_after=2.0)
    assert request.on_shed(generation_plan(), error) == [Fail(error)]
    assert (request.is_done, request.outcome, request.model) == (True, "shed", generation_plan().model)
    assert request.on_shed(generation_plan(), error) == []
    assert request.on_tokenized(generation_plan(), 1.0) == []


@pytest.mark.parametrize("make", [queued_request, running_request])
def test_the_deadline_ends_a_request_in_any_state(make):
    request = make()
    effects = request.tick(DEADLINE)
    assert [effect.error.code for effect in effects if isinstance(effect, Fail)] == [DeadlineExceeded.code]
    effects += request.on_run_stopped(0, 0, RunTimes(), DEADLINE + 1)
    assert effects[-1] == Settle(0, 0, "failed", 0, request.worker_id)


def test_a_resumed_answer_continues_its_indexes_and_is_not_charged_again():
    request = running_request(resumed_ids=[ord("a"), ord("b")])
    assert request.on_token(2, ord("c"), None, 11.0) == Emit("", (ord("c"),), 2, ())
    *_, settle = request.on_run_finished(FINISH_REASON_STOP, 1, 0, RUN_TIMES, 12.0)
    assert settle == Settle(3, 1, "stop", 0, "w1")


def test_a_resumed_answer_that_was_complete_needs_no_run():
    request = new_active_request()
    request.on_tokenized(generation_plan(resumed_ids=[ord("a"), EOS_ID]), 1.0)
    assert request.on_admitted(Identity(), "r1", 2.0) == [
        Accept(),
        Finish(FINISH_REASON_STOP, ""),
        Settle(0, 0, "stop"),
    ]


def test_a_complete_resumed_answer_sends_the_text_that_was_held_back():
    request, letters = new_active_request(), LetterDetokenizer()
    letters.push(ord("a"))  # as the resumed tokens are pushed before the request starts
    request.on_tokenized(generation_plan(detokenizer=letters, resumed_ids=[ord("a")], max_output_tokens=1), 1.0)
    effects = request.on_admitted(Identity(), "r1", 2.0)
    assert effects == [Accept(), Emit("a", (), 1, ()), Finish(FINISH_REASON_LENGTH, ""), Settle(0, 0, "length")]
