"""What becomes of a line whose request failed: refused for good, run later, lost, or the end of its batch."""

import pytest

from penstock.chassis.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from penstock.edge.api.lines.verdict import verdict_of
from penstock.mesh.v1.batch_pb2 import (
    LINE_VERDICT_LATER,
    LINE_VERDICT_LOST,
    LINE_VERDICT_REFUSED,
    LINE_VERDICT_STOP,
)

CASES = (
    (InvalidArgument("x", field="n"), LINE_VERDICT_REFUSED),
    (NotFound("x", reason="MODEL_UNKNOWN"), LINE_VERDICT_REFUSED),
    (Unimplemented("x"), LINE_VERDICT_REFUSED),
    (PermissionDenied("x", reason="MODEL_FORBIDDEN"), LINE_VERDICT_REFUSED),
    (Internal("x", reason="ENGINE_CRASHED"), LINE_VERDICT_REFUSED),
    (QuotaExceeded("x", reason="QUOTA_EXCEEDED"), LINE_VERDICT_REFUSED),
    (QuotaExceeded("x", reason="QUOTA_EXCEEDED", retry_after=1.0), LINE_VERDICT_LATER),
    (QuotaExceeded("x", reason="BUDGET_EXCEEDED", retry_after=1e6), LINE_VERDICT_STOP),
    (Unauthenticated("x", reason="KEY_REVOKED"), LINE_VERDICT_STOP),
    (PermissionDenied("x", reason="TENANT_UNKNOWN"), LINE_VERDICT_STOP),
    (PermissionDenied("x", reason="REGION_NOT_ALLOWED"), LINE_VERDICT_STOP),
    (Overloaded("x", reason="QUEUE_FULL", retry_after=1.0), LINE_VERDICT_LATER),
    (Unavailable("x", reason="NO_WORKER", retry_after=1.0), LINE_VERDICT_LATER),
    (Cancelled("x"), LINE_VERDICT_LATER),
    (Aborted("x", reason="MODEL_REPLACED"), LINE_VERDICT_LATER),
    (Aborted("x", reason="ATTEMPTS_EXHAUSTED", retry_after=1.0), LINE_VERDICT_LOST),
    (Internal("x"), LINE_VERDICT_LOST),
)


@pytest.mark.parametrize(("error", "verdict"), CASES, ids=lambda each: getattr(each, "reason", None))
def test_the_verdict_follows_from_the_error(error, verdict):
    assert verdict_of(error, has_own_timeout=False) == verdict


def test_a_deadline_is_final_only_if_the_line_has_set_it():
    error = DeadlineExceeded("x")
    assert verdict_of(error, has_own_timeout=True) == LINE_VERDICT_REFUSED
    assert verdict_of(error, has_own_timeout=False) == LINE_VERDICT_LATER
