"""A request whose version of the model is replaced: without output it moves to another one, with output it does not."""

import pytest

from active_requests import generation_plan, lease, new_active_request, queued_request, running_request, send_tokens
from penstock.chassis.errors import FailedPrecondition, NotFound, Unavailable
from penstock.edge.lifecycle.effects import Accept, Enqueue, Fail, PlanAgain, Settle, StartRun, Withdraw
from penstock.edge.lifecycle.record import RequestState
from penstock.mesh.v1.admission_pb2 import Identity

NEW_PLAN = generation_plan(prompt_ids=[4, 5], model_version="new")
NO_WORKER = Unavailable("", reason="NO_WORKER", retry_after=1.0)


def test_a_queued_request_without_output_is_planned_for_another_version():
    request = queued_request(model_version="old")
    assert request.on_queued() == [Accept()]
    assert request.on_model_replaced() == [Withdraw(), PlanAgain()]
    assert request.on_planned_again(NEW_PLAN) == [Accept(), Enqueue()]  # the client learns of the new version
    assert (request.attempt, request.model_key, request.prompt_tokens) == (2, "tiny@new", 2)


def test_nothing_about_the_former_ticket_counts_while_the_prompt_is_tokenized_again():
    request = queued_request(model_version="old")
    request.on_model_replaced()
    assert request.on_queue_lost() == []
    assert request.on_model_replaced() == []
    assert request.on_leased(lease(1), 3.0) == []  # placed while it was withdrawn
    assert request.on_planned_again(NEW_PLAN) == [Enqueue()]
    assert request.on_leased(lease(1), 4.0) == []
    assert request.on_leased(lease(2), 4.0) == [Accept(), StartRun(lease(2))]


def test_a_request_that_is_cancelled_meanwhile_is_settled_once_and_not_enqueued_again():
    request = queued_request(model_version="old")
    request.on_model_replaced()
    assert [type(each) for each in request.on_client_cancelled(3.0)][-1] is Settle
    assert request.on_planned_again(NEW_PLAN) == []


def test_a_lease_for_another_model_is_ignored():
    request = queued_request(model_version="old")
    foreign = lease(1)
    foreign.model = "tiny@new"
    assert request.on_leased(foreign, 3.0) == []
    foreign.model = "tiny@old"
    assert request.on_leased(foreign, 3.0) == [Accept(), StartRun(foreign)]


def interrupted_request():
    request = running_request(model_version="old")
    send_tokens(request, "ab")
    assert request.on_worker_lost(20.0, died=True) == [Enqueue()]
    return request


def test_an_answer_with_output_waits_for_its_version_and_then_ends_with_an_error_that_says_so():
    request = interrupted_request()
    assert request.on_model_replaced() == []
    assert request.on_queue_rejected(NO_WORKER, 21.0, is_replaced=True) == [Enqueue()]  # all workers again
    assert request.on_queue_rejected(NO_WORKER, 21.0, is_replaced=True) == []
    assert request.tick(22.0) == [Enqueue()]  # a worker of it may be restarting
    fail, settle = request.on_queue_rejected(NO_WORKER, 31.0, is_replaced=True)
    assert isinstance(fail, Fail)
    assert (fail.error.reason, fail.error.retry_after) == ("MODEL_REPLACED", 0.0)
    assert settle == Settle(3, 2, "failed", 0, "w1")


def test_an_answer_with_output_continues_if_a_worker_of_its_version_is_back():
    request = interrupted_request()
    assert request.on_leased(lease(2, "w2"), 23.0) == [StartRun(lease(2, "w2"))]


@pytest.mark.parametrize("error", [NO_WORKER, NotFound("", reason="MODEL_UNKNOWN")])
def test_a_rejected_ticket_of_a_replaced_version_is_planned_again(error):
    request = queued_request(model_version="old")
    assert request.on_queue_rejected(error, 3.0, is_replaced=True) == [Withdraw(), PlanAgain()]


def test_a_resumed_answer_counts_as_output():
    request = new_active_request()
    request.on_tokenized(generation_plan(resumed_ids=(97,), model_version="old"), 1.0)
    request.on_admitted(Identity(tenant_id="acme"), "r1", 2.0)
    assert request.on_model_replaced() == []


def test_a_worker_of_another_model_costs_no_attempt():
    request = running_request(model_version="old")
    error = FailedPrecondition("", reason="MODEL_MISMATCH")
    assert request.on_run_rejected(error, 11.0, never_ran=True) == [Enqueue()]
    assert (request.failed_attempts.count, request.attempt, request.state) == (0, 2, RequestState.QUEUED)
