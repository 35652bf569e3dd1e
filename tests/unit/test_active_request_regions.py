"""An active request that its queue rejects for load: offers to other regions, a run there, and its loss."""

import pytest

from active_requests import LIMITS, RUN_TIMES, generation_plan, lease, new_active_request, queued_request, send_tokens
from penstock.chassis.errors import Overloaded, Unavailable
from penstock.edge.lifecycle.effects import (
    Accept,
    AcknowledgeCancel,
    CancelRun,
    Enqueue,
    Fail,
    Finish,
    Offer,
    Settle,
    StartRun,
    Withdraw,
)
from penstock.edge.lifecycle.record import RequestState
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH

FULL = Overloaded("full", reason="QUEUE_FULL", retry_after=1.0)
GONE = Unavailable("no worker", reason="NO_WORKER", retry_after=1.0)


def offered_request(error=FULL, **changes):
    request = queued_request(spills=True, **changes)
    assert request.on_queue_rejected(error, 3.0) == [Offer()]
    request.on_offered("us", 3.0)
    return request


def spilled_request(**changes):
    request = offered_request(**changes)
    assert request.on_region_started(4.0) == [Accept()]
    return request


@pytest.mark.parametrize("error", [FULL, GONE])
def test_a_rejected_request_is_offered_if_there_are_other_regions(error):
    assert offered_request(error).state is RequestState.OFFERED
    alone = queued_request()
    assert alone.on_queue_rejected(error, 3.0) == [Fail(error), Settle(0, 0, "shed")]


def test_an_error_of_the_request_itself_is_not_offered():
    request, error = queued_request(spills=True), Unavailable("tested", reason="SUSPECT")
    assert request.on_queue_rejected(error, 3.0) == [Fail(error), Settle(0, 0, "shed")]


def test_regions_are_asked_one_after_the_other_and_the_rejection_of_the_queue_is_the_end():
    request = offered_request()
    assert request.on_offer_rejected() == [Offer()]
    request.on_offered("ap", 3.5)
    assert request.offered_to == ("us", "ap")
    assert request.on_offer_rejected() == [Offer()]
    assert request.on_no_region() == [Fail(FULL), Settle(0, 0, "shed")]


def test_a_region_that_does_not_answer_is_left_after_the_offer_timeout():
    request = offered_request()
    assert request.next_tick_at == 3.0 + LIMITS.offer_timeout
    assert request.tick(request.next_tick_at) == [Offer()]


def test_the_tokens_of_a_region_are_charged_like_those_of_a_worker():
    request = spilled_request(max_output_tokens=2)
    send_tokens(request, "ab")
    effects = request.on_run_finished(FINISH_REASON_LENGTH, 2, 1, RUN_TIMES, 15.0)
    assert effects[-2:] == [Finish(FINISH_REASON_LENGTH, ""), Settle(3, 2, "length", 1, "region:us")]


def test_a_cancel_is_sent_to_the_region_and_acknowledged():
    request = spilled_request()
    send_tokens(request, "ab")
    assert request.on_client_cancelled(13.0) == [CancelRun()]
    effects = request.on_run_stopped(3, 7, RUN_TIMES, 13.5)
    assert effects == [AcknowledgeCancel(3, 7, 0.5, True), Settle(3, 3, "cancelled", 0, "region:us")]


def test_a_cancel_during_an_offer_withdraws_it():
    request = offered_request()
    assert [type(each) for each in request.on_client_cancelled(3.2)] == [Withdraw, AcknowledgeCancel, Settle]
    assert request.on_region_started(3.3) == []


def test_a_lost_region_is_followed_by_a_run_at_home_from_the_tokens_so_far():
    request = spilled_request()
    send_tokens(request, "ab")
    assert request.on_worker_lost(13.0, died=False) == [Enqueue()]
    assert (request.attempt, list(request.output.token_ids)) == (2, [97, 98])
    assert request.failed_attempts.avoided_workers == []
    assert [each.worker_id for each in request.lost_runs] == ["region:us"]
    assert request.on_leased(lease(attempt=2), 14.0) == [StartRun(lease(attempt=2))]


def test_a_request_that_is_rejected_at_home_later_may_be_offered_again():
    request = spilled_request()
    request.on_worker_lost(13.0, died=False)
    assert request.on_queue_rejected(FULL, 14.0) == [Offer()]
    assert request.offered_to == ()


def test_a_guest_is_enqueued_without_a_reservation_and_continues_an_answer():
    request = new_active_request()
    plan = generation_plan(resumed_ids=[97, 98])
    assert request.on_guest(plan, Identity(tenant_id="acme"), 1.0) == [Enqueue()]
    assert request.on_leased(lease(), 2.0) == [Accept(), StartRun(lease())]
    request.on_run_started()
    send_tokens(request, "c")
    effects = request.on_run_finished(FINISH_REASON_LENGTH, 1, 0, RUN_TIMES, 15.0)
    assert effects[-1] == Settle(3, 1, "length", 0, "w1")
