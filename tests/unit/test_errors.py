"""An error keeps its type, reason and numbers through each conversion."""

import grpc
import pytest
from google.rpc.status_pb2 import Status

from penstock.chassis import errors
from penstock.chassis.errors import (
    Internal,
    InvalidArgument,
    Overloaded,
    PenstockError,
    QuotaExceeded,
    Unavailable,
    error_from_failure,
    error_from_rpc,
    failure_from,
)
from penstock.v1.failure_pb2 import Failure, FieldViolation, QuotaViolation

KINDS = sorted(PenstockError.__subclasses__(), key=lambda kind: kind.__name__)


def facts(error):
    violations = (error.field_violations, error.quota_violations)
    return type(error), error.reason, error.message, error.retry_after, error.metadata, violations


def full(kind):
    return kind(
        "what to do next",
        reason=None if kind is QuotaExceeded else "SOME_REASON",
        retry_after=1.5,
        metadata={"limit": "7"},
        field_violations=[FieldViolation(field="model", description="is empty")],
        quota_violations=[QuotaViolation(subject="tenant:a", description="7 of 7")],
    )


def rpc_error(code, details, trailing=()):
    metadata = grpc.aio.Metadata(*trailing)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=details)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_frame_converts_back_to_the_same_error(kind):
    assert facts(error_from_failure(full(kind).failure())) == facts(full(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_status_of_a_call_converts_back_to_the_same_error(kind):
    error = full(kind)
    assert facts(error_from_rpc(rpc_error(kind.code, error.message, error.trailing_metadata()))) == facts(error)


def test_every_code_has_one_class_except_that_quota_and_overload_share_one():
    codes = [kind.code for kind in KINDS]
    assert {code for code in codes if codes.count(code) > 1} == {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_a_status_has_only_details_with_content():
    assert [detail.type_url.rpartition(".")[2] for detail in Overloaded("full").status().details] == ["ErrorInfo"]


def test_pushback_is_the_retry_delay_in_ms_or_do_not_retry():
    assert dict(Overloaded("full", retry_after=0.25).trailing_metadata())[errors.PUSHBACK_METADATA_KEY] == "250"
    assert dict(InvalidArgument("wrong").trailing_metadata())[errors.PUSHBACK_METADATA_KEY] == "-1"


def test_an_unmapped_exception_is_hidden_from_the_peer():
    failure = failure_from(ValueError("a secret"))
    assert (failure.reason, failure.message) == ("INTERNAL", "internal error")


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
    ],
)
def test_a_lost_connection_is_the_same_event_with_and_without_a_proxy(code, details):
    error = error_from_rpc(rpc_error(code, details))
    assert (type(error), error.reason) == (Unavailable, "CONNECTION_LOST")


def test_an_unknown_code_is_an_internal_error():
    assert type(error_from_failure(Failure(code=99, message="?"))) is Internal


def test_the_binary_details_are_a_google_rpc_status():
    blob = dict(Overloaded("full").trailing_metadata())["grpc-status-details-bin"]
    assert Status.FromString(blob).code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
