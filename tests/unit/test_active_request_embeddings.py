"""A request for an embedding: it ends with the vector of its run, and is charged for its prompt alone."""

import math

import pytest

from active_requests import RUN_TIMES, lease, running_request
from penstock.edge.lifecycle.effects import Enqueue, Finish, Settle, StartRun
from penstock.mesh.v1.worker_pb2 import RunTimes
from penstock.v1.inference_pb2 import FINISH_REASON_STOP

PLAN = {"max_output_tokens": 1, "embedding_size": 3}
VECTOR = (1.0, 0.0, 0.0)


def finish(request, embedding, now=11.0, times=RUN_TIMES):
    return request.on_run_finished(FINISH_REASON_STOP, 0, 2, times, now, embedding=embedding)


def test_the_vector_is_kept_and_the_prompt_is_charged():
    request = running_request(**PLAN)
    effects = finish(request, VECTOR)
    assert effects == [Finish(FINISH_REASON_STOP, ""), Settle(3, 0, "stop", 2, "w1")]
    assert tuple(request.embedding) == VECTOR
    assert request.is_done


@pytest.mark.parametrize("wrong", [(), VECTOR[:2], (*VECTOR, 0.0), (1.0, math.nan, 0.0), (math.inf, -math.inf, 0.0)])
def test_a_worker_that_sends_no_proper_vector_is_avoided(wrong):
    request = running_request(**PLAN)
    assert finish(request, wrong) == [Enqueue()]
    assert (request.attempt, request.failed_attempts.avoided_workers) == (2, ["w1"])
    assert request.on_leased(lease(2, "w2"), 12.0) == [StartRun(lease(2, "w2"))]
    request.on_run_started()
    assert finish(request, VECTOR, 13.0)[0] == Finish(FINISH_REASON_STOP, "")


def test_a_lost_worker_is_replaced_and_the_prompt_is_charged_once():
    request = running_request(**PLAN)
    assert request.on_worker_lost(11.0, died=True) == [Enqueue()]
    request.on_leased(lease(2, "w2"), 12.0)
    request.on_run_started()
    assert [each for each in finish(request, VECTOR, 13.0) if isinstance(each, Settle)] == [
        Settle(3, 0, "stop", 2, "w2")
    ]


def test_a_token_in_place_of_a_vector_is_no_answer():
    request = running_request(**PLAN)
    request.on_token(0, ord("a"), None, 10.5)
    assert finish(request, ()) == [Enqueue()]
    assert not request.is_done


def test_other_requests_ignore_a_vector():
    request = running_request()
    assert finish(request, (), times=RunTimes())[0] == Finish(FINISH_REASON_STOP, "")
    assert tuple(request.embedding) == ()
