"""Repeated cancels at each stage of a request: one ending, one settlement, no further run."""

import pytest

from active_requests import (
    END_EFFECTS,
    LIMITS,
    RUN_TIMES,
    generation_plan,
    lease,
    new_active_request,
    queued_request,
    running_request,
    send_tokens,
    token_effects,
)
from penstock.chassis.errors import Unavailable
from penstock.edge.lifecycle.effects import CancelRun, Emit, Enqueue, Settle, StartRun, Withdraw
from penstock.edge.lifecycle.record import RequestState
from penstock.mesh.v1.admission_pb2 import Identity

CANCELLED_AT_S = 20.0


def reserving():
    request = new_active_request()
    request.on_tokenized(generation_plan(), 1.0)
    return request


def leased():
    request = queued_request()
    request.on_queued()
    assert request.on_leased(lease(), 10.0) == [StartRun(lease())]
    return request


def decoding(text="ab"):
    request = running_request()
    send_tokens(request, text)
    return request


def migrating():
    """A request with a partial answer that is queued again after the loss of its worker."""
    request = decoding()
    assert request.on_worker_lost(13.0, died=True) == [Enqueue()]
    return request


def between_workers():
    """A request with a partial answer whose next lease has not started."""
    request = migrating()
    request.on_leased(lease(2, "w2"), 14.0)
    return request


def waiting_for_any_worker():
    request = migrating()
    request.on_queue_rejected(Unavailable("", reason="NO_WORKER", retry_after=5.0), 18.0)
    return request


# Stage, effects that release resources, charged tokens.
STAGES = [
    (queued_request, Withdraw, 0),
    (leased, Withdraw, 0),
    (running_request, CancelRun, 0),
    (decoding, CancelRun, 2),
    (migrating, Withdraw, 2),
    (between_workers, Withdraw, 2),
    (waiting_for_any_worker, Withdraw, 2),
]


def cancel_and_finish(request, times=2):
    """Cancel `times` times, then let the worker answer and time pass. Returns all effects."""
    effects = [effect for _ in range(times) for effect in request.on_client_cancelled(CANCELLED_AT_S)]
    effects += request.on_run_stopped(len(request.output.token_ids), 3, RUN_TIMES, CANCELLED_AT_S + 0.01)
    effects += request.on_run_stopped(len(request.output.token_ids), 3, RUN_TIMES, CANCELLED_AT_S + 0.02)
    effects += request.tick(CANCELLED_AT_S + LIMITS.cancel_ack_timeout + 1.0)
    return effects


@pytest.mark.parametrize(("stage", "releasing_effect", "charged"), STAGES, ids=[each[0].__name__ for each in STAGES])
def test_repeated_cancels_end_a_request_once_and_charge_generated_tokens(stage, releasing_effect, charged):
    request = stage()
    effects = cancel_and_finish(request)
    (ending,) = [each for each in effects if isinstance(each, END_EFFECTS)]
    (settled,) = [each for each in effects if isinstance(each, Settle)]
    assert type(ending).__name__ == "AcknowledgeCancel"
    assert (settled.output_tokens, settled.outcome) == (charged, "cancelled")
    assert [type(each) for each in effects].count(releasing_effect) == 1
    assert request.state is RequestState.DONE


@pytest.mark.parametrize("stage", [each[0] for each in STAGES])
def test_a_repeated_cancel_has_no_further_effect(stage):
    assert cancel_and_finish(stage(), times=2) == cancel_and_finish(stage(), times=1)


@pytest.mark.parametrize("stage", [each[0] for each in STAGES])
def test_nothing_starts_and_nothing_is_emitted_after_a_cancel(stage):
    request = stage()
    request.on_client_cancelled(CANCELLED_AT_S)
    late = [
        *request.on_leased(lease(request.attempt, "w9"), CANCELLED_AT_S),
        *token_effects(request, len(request.output.token_ids), ord("x"), CANCELLED_AT_S),
        *request.on_worker_lost(CANCELLED_AT_S, died=True),
        *request.tick(CANCELLED_AT_S + 1_000.0),
    ]
    assert not [each for each in late if isinstance(each, StartRun | Emit | Enqueue)]


def test_a_grant_after_repeated_cancels_is_settled_once():
    request = reserving()
    effects = [effect for _ in range(2) for effect in request.on_client_cancelled(CANCELLED_AT_S)]
    assert [type(each).__name__ for each in effects] == ["AcknowledgeCancel"]
    granted = [effect for _ in range(2) for effect in request.on_admitted(Identity(), "r1", CANCELLED_AT_S + 1.0)]
    assert granted == [Settle(0, 0, "cancelled")]
