"""Lost workers, queues and leases: a request resumes after its last token, or fails with a reason."""

import pytest

from active_requests import DEADLINE, LIMITS, lease, queued_request, running_request, send_tokens
from penstock.chassis.errors import (
    Aborted,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from penstock.edge.lifecycle.effects import (
    AcknowledgeCancel,
    CancelRun,
    Emit,
    Enqueue,
    Fail,
    Finish,
    Settle,
    StartRun,
    Withdraw,
)
from penstock.edge.lifecycle.record import RequestState
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP


def test_a_lost_worker_is_avoided_and_the_next_run_resumes_after_the_last_token():
    request = running_request()
    send_tokens(request, "abc")
    first_enqueue = request.enqueued_at
    assert request.on_worker_lost(13.0, died=True) == [Enqueue()]
    assert (request.attempt, request.failed_attempts.avoided_workers, request.enqueued_at) == (2, ["w1"], first_enqueue)
    assert list(request.output.token_ids) == [ord("a"), ord("b"), ord("c")]
    assert request.on_queued() == []  # accepted once
    assert request.on_leased(lease(2, "w2"), 14.0) == [StartRun(lease(2, "w2"))]
    request.on_run_started()
    assert request.on_token(2, ord("c"), None, 15.0) == []
    assert request.on_token(3, ord("d"), None, 15.0) == Emit("c", (ord("d"),), 3, ())
    assert request.output.duplicate_tokens == 1


def test_a_draining_worker_is_not_avoided():
    request = running_request()
    assert request.on_worker_lost(13.0, died=False) == [Enqueue()]
    assert request.failed_attempts.avoided_workers == []


@pytest.mark.parametrize("reason", ["LEASE_LOST", "DRAINING"])
def test_a_rejected_run_is_retried_on_another_worker(reason):
    request = running_request()
    error = Aborted("", reason=reason) if reason == "LEASE_LOST" else Unavailable("", reason=reason)
    assert request.on_run_rejected(error, 11.0) == [Enqueue()]
    assert (request.attempt, request.failed_attempts.avoided_workers) == (2, [])


def test_a_worker_whose_engine_died_under_the_request_is_avoided():
    request = running_request()
    assert request.on_run_rejected(Unavailable("", reason="ENGINE_DIED"), 11.0) == [Enqueue()]
    assert request.failed_attempts.avoided_workers == ["w1"]


def test_a_permanently_rejected_run_fails_the_request_and_charges_nothing():
    request = running_request()
    error = InvalidArgument("too long", reason="PROMPT_TOO_LONG")
    assert request.on_run_rejected(error, 11.0) == [Fail(error), Settle(0, 0, "failed", 0, "w1")]


def test_a_run_that_never_started_costs_no_attempt_and_is_retried_after_a_delay():
    request, now = running_request(), 11.0
    starting_anew = Unavailable("", reason="ENGINE_DIED")
    assert request.on_run_rejected(starting_anew, now, never_ran=True) == [Enqueue()]
    for attempt in range(2, 3 * LIMITS.max_attempts):
        request.on_leased(lease(attempt), now)
        request.on_run_started()
        assert request.on_run_rejected(starting_anew, now, never_ran=True) == []
        assert request.tick(now + LIMITS.retry_interval / 2) == []
        now += LIMITS.retry_interval
        assert request.tick(now) == [Enqueue()]
    assert request.failed_attempts.count == 0


def test_a_preempted_run_costs_no_attempt_and_continues_at_once():
    request = running_request()
    send_tokens(request, "a")
    revoked = Aborted("", reason="LEASE_REVOKED")
    assert request.on_run_rejected(revoked, 11.0) == [Enqueue()]
    for attempt in range(2, 3 * LIMITS.max_attempts):
        request.on_leased(lease(attempt), 11.0)
        request.on_run_started()
        assert request.on_run_rejected(revoked, 11.0) == [Enqueue()]
    assert (request.failed_attempts.count, request.failed_attempts.avoided_workers) == (0, [])
    assert list(request.output.token_ids) == [ord("a")]


def test_attempts_are_bounded():
    request = running_request()
    send_tokens(request, "a")
    for attempt in (2, 3):
        assert request.on_worker_lost(20.0, died=True) == [Enqueue()]
        request.on_leased(lease(attempt), 20.0)
        request.on_run_started()
    fail, settle = request.on_worker_lost(21.0, died=True)
    assert fail.error.reason == "ATTEMPTS_EXHAUSTED"
    assert settle == Settle(3, 1, "failed", 0, "w1")


@pytest.mark.parametrize(
    ("text", "reason", "outcome"), [("abcdef", FINISH_REASON_LENGTH, "length"), ("ab\x07", FINISH_REASON_STOP, "stop")]
)
def test_a_worker_that_dies_after_the_last_token_costs_nothing(text, reason, outcome):
    request = running_request()
    send_tokens(request, text)
    held, finish, settle = request.on_worker_lost(13.0, died=True)
    assert held.text == text[-1]
    assert finish == Finish(reason, "")
    assert settle == Settle(3, len(text), outcome, 0, "w1")


def test_a_gap_in_the_tokens_ends_the_run_and_not_the_request():
    request = running_request()
    send_tokens(request, "a")
    assert request.on_token(2, ord("c"), None, 12.0) == [CancelRun(), Enqueue()]
    assert list(request.output.token_ids) == [ord("a")]


def test_a_cancel_ends_although_its_worker_is_lost():
    request = running_request()
    send_tokens(request, "ab")
    request.on_client_cancelled(13.0)
    assert request.on_worker_lost(14.0, died=True) == [
        AcknowledgeCancel(2, 0, 1.0, is_acknowledged=False),
        Settle(3, 2, "cancelled", 0, "w1"),
    ]


def test_a_partial_answer_waits_for_a_worker():
    request = running_request()
    send_tokens(request, "a")
    request.on_worker_lost(13.0, died=False)
    assert request.on_queue_rejected(Unavailable("", reason="NO_WORKER", retry_after=2.0), 14.0) == []
    assert request.next_tick_at == 16.0
    assert request.tick(16.0) == [Enqueue()]
    assert request.on_queue_rejected(Unavailable("", reason="NO_WORKER"), 17.0) == []
    assert request.next_tick_at == 17.25
    error = Unavailable("", reason="NO_WORKER", retry_after=8.0)
    assert request.on_queue_rejected(error, 17.0) == [
        Fail(error),
        Settle(3, 1, "shed", 0, "w1"),
    ]  # 8 s more would exceed the upstream timeout


def test_an_avoided_worker_is_used_again_if_there_is_no_other():
    request = running_request()
    request.on_worker_lost(13.0, died=True)
    error = Unavailable("", reason="NO_WORKER", retry_after=2.0)
    assert request.on_queue_rejected(error, 14.0) == [Enqueue()]
    assert request.failed_attempts.avoided_workers == []
    assert request.on_queue_rejected(error, 15.0) == []  # a lack of workers is retried instead
    assert request.next_tick_at == 17.0


def test_a_new_request_fails_at_once_if_no_worker_serves_it():
    request = queued_request()
    error = Unavailable("", reason="NO_WORKER", retry_after=2.0)
    assert request.on_queue_rejected(error, 3.0) == [Fail(error), Settle(0, 0, "shed")]


def test_a_transient_rejection_is_retried():
    request = queued_request()
    assert request.on_queue_rejected(NotFound("", reason="MODEL_UNKNOWN"), 3.0, is_transient=True) == []
    assert request.next_tick_at == 3.25
    assert request.tick(3.25) == [Enqueue()]


def test_a_lost_queue_shard_causes_another_enqueue():
    request = queued_request()
    assert request.on_queue_lost() == [Enqueue()]
    assert request.attempt == 1
    assert request.on_no_queue(5.0) == []
    assert request.next_tick_at == 15.0
    assert request.on_queue_lost() == [Enqueue()]
    request.on_queued()
    assert request.next_tick_at == DEADLINE


def test_a_request_waits_for_a_queue_until_its_timeout():
    request = queued_request()
    request.on_no_queue(5.0)
    withdraw, fail, settle = request.tick(15.0)
    assert (withdraw, fail.error.reason, settle) == (Withdraw(), "QUEUE_LOST", Settle(0, 0, "failed"))
    assert fail.error.message == "no queue can be reached; retry in 1 s"


def test_a_lease_that_does_not_start_in_time_is_withdrawn():
    request = queued_request()
    request.on_leased(lease(), 10.0)
    assert request.next_tick_at == 14.0
    assert request.tick(14.0) == [Withdraw(), Enqueue()]
    assert request.attempt == 2


def test_a_revoked_lease_is_not_started_and_its_ticket_is_enqueued_again():
    request = queued_request()
    request.on_leased(lease(), 10.0)
    assert request.on_queue_rejected(Unavailable("", reason="SUSPECT", retry_after=1.0), 10.5, is_transient=True) == [
        Withdraw(),
        Enqueue(),
    ]
    assert (request.state, request.attempt, request.failed_attempts.count) == (RequestState.QUEUED, 2, 0)


def test_a_running_request_ignores_rejections_of_the_queue():
    request = running_request()
    assert request.on_queue_rejected(Unavailable("", reason="SUSPECT", retry_after=1.0), 11.0, is_transient=True) == []
    assert request.state is RequestState.RUNNING


def test_a_lease_of_an_earlier_attempt_is_ignored():
    request = running_request()
    request.on_worker_lost(11.0, died=True)
    assert request.on_leased(lease(1), 12.0) == []
    assert request.state is RequestState.QUEUED
