"""A ticket that is enqueued beside the reservation: its events take effect once auth has admitted the request."""

import pytest

from active_requests import DEADLINE, generation_plan, lease, new_active_request
from penstock.chassis.errors import Overloaded, QuotaExceeded, Unavailable
from penstock.edge.lifecycle.effects import (
    Accept,
    AcknowledgeCancel,
    Enqueue,
    Fail,
    Reserve,
    Settle,
    StartRun,
    Withdraw,
)
from penstock.edge.lifecycle.record import RequestState
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.v1.inference_pb2 import PRIORITY_BATCH, PRIORITY_STANDARD

IDENTITY = Identity(tenant_id="acme", priority=PRIORITY_STANDARD, weight=2, cache_salt=b"salt")


@pytest.fixture
def request_():
    request = new_active_request()
    request.identity = IDENTITY
    assert request.on_tokenized(generation_plan(), 1.0, enqueues_early=True) == [Enqueue(), Reserve()]
    return request


def changed(**fields):
    identity = Identity()
    identity.CopyFrom(IDENTITY)
    for name, value in fields.items():
        setattr(identity, name, value)
    return identity


def test_a_lease_before_the_reservation_starts_with_it(request_):
    assert request_.on_queued() == []
    assert request_.on_leased(lease(), 1.5) == []
    assert request_.on_admitted(IDENTITY, "r1", 2.0) == [Accept(), StartRun(lease())]
    assert request_.state is RequestState.LEASED
    assert request_.next_tick_at == 5.5  # the lease's 4 s count from its arrival


def test_a_lease_after_the_reservation_starts_at_once(request_):
    assert request_.on_admitted(IDENTITY, "r1", 2.0) == []
    assert request_.state is RequestState.QUEUED
    assert request_.on_queued() == [Accept()]
    assert request_.on_leased(lease(), 3.0) == [StartRun(lease())]


def test_a_lease_that_lapsed_during_the_wait_for_auth_is_tried_again(request_):
    request_.on_leased(lease(), 1.5)
    request_.on_admitted(IDENTITY, "r1", 5.6)
    assert request_.tick(5.6) == [Withdraw(), Enqueue()]
    assert request_.attempt == 2


@pytest.mark.parametrize("has_lease", [False, True])
def test_a_rejection_by_auth_withdraws_the_ticket_and_is_the_clients_error(request_, has_lease):
    if has_lease:
        request_.on_leased(lease(), 1.5)
    error = QuotaExceeded("")
    assert request_.on_auth_rejected(error, 2.0) == [Withdraw(), Fail(error)]
    assert request_.is_done


def test_a_rejection_by_the_queue_is_the_clients_error_once_auth_has_admitted_the_request(request_):
    error = Overloaded("", reason="QUEUE_FULL", retry_after=1.0)
    assert request_.on_queue_rejected(error, 1.5) == []
    assert request_.on_admitted(IDENTITY, "r1", 2.0) == [Fail(error), Settle(0, 0, "shed")]


def test_a_rejection_by_auth_precedes_one_by_the_queue(request_):
    request_.on_queue_rejected(Overloaded("", reason="QUEUE_FULL", retry_after=1.0), 1.5)
    error = QuotaExceeded("")
    assert request_.on_auth_rejected(error, 2.0) == [Withdraw(), Fail(error)]


def test_a_transient_rejection_by_the_queue_is_retried_once_auth_has_admitted_the_request(request_):
    request_.on_queue_rejected(Unavailable("", reason="MODEL_UNKNOWN", retry_after=1.0), 1.5, is_transient=True)
    assert request_.on_admitted(IDENTITY, "r1", 2.0) == []
    assert request_.tick(2.5) == [Enqueue()]


@pytest.mark.parametrize("event", ["on_queue_lost", "on_no_queue"])
def test_a_lost_ticket_is_enqueued_once_auth_has_admitted_the_request(request_, event):
    assert getattr(request_, event)(*([1.5] if event == "on_no_queue" else [])) == []
    assert request_.on_admitted(IDENTITY, "r1", 2.0) == [Enqueue()]
    assert request_.attempt == 1
    assert request_.enqueued_at == 1.0  # it keeps its place


@pytest.mark.parametrize(
    "fields", [{"tenant_id": "other"}, {"priority": PRIORITY_BATCH}, {"weight": 3}, {"cache_salt": b"new"}]
)
def test_a_ticket_of_other_rights_is_replaced(request_, fields):
    request_.on_leased(lease(), 1.5)
    assert request_.on_admitted(changed(**fields), "r1", 2.0) == [Withdraw(), Enqueue()]
    assert request_.on_leased(lease(attempt=1), 2.5) == []
    assert request_.on_leased(lease(attempt=2), 2.6) == [Accept(), StartRun(lease(attempt=2))]


def test_a_cancel_withdraws_the_ticket_and_settles_the_reservation_that_auth_grants_later(request_):
    request_.on_leased(lease(), 1.5)
    assert request_.on_client_cancelled(1.6) == [Withdraw(), AcknowledgeCancel(0, 0, 0.0, is_acknowledged=False)]
    assert request_.on_leased(lease(), 1.7) == [Withdraw()]
    assert request_.on_admitted(IDENTITY, "r1", 2.0) == [Settle(0, 0, "cancelled")]


@pytest.mark.parametrize("time", [11.0, DEADLINE])
def test_a_ticket_is_withdrawn_if_auth_does_not_answer_in_time(request_, time):
    assert [type(effect) for effect in [*request_.tick(time), *request_.tick(time + 1.0)]] == [Withdraw, Fail]


def test_a_lost_stream_to_auth_repeats_the_reservation_alone(request_):
    request_.on_leased(lease(), 1.5)
    assert request_.on_auth_connected() == [Reserve()]
    assert request_.on_admitted(IDENTITY, "r1", 2.0) == [Accept(), StartRun(lease())]
