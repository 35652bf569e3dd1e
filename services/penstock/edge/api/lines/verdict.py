"""Verdict on a line whose request failed. Pure."""

import grpc

from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.batch_pb2 import (
    LINE_VERDICT_LATER,
    LINE_VERDICT_LOST,
    LINE_VERDICT_REFUSED,
    LINE_VERDICT_STOP,
    LineVerdict,
)

# Codes of errors that the line would meet again.
_FINAL_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)
# Codes of errors that pass, without a fault of the line.
_PASSING_CODES = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


def verdict_of(error: PenstockError, *, has_own_timeout: bool) -> LineVerdict.ValueType:
    """`has_own_timeout`: the body of the line limits its time."""
    match error.reason:
        case "MODEL_FORBIDDEN" | "ENGINE_CRASHED":
            return LINE_VERDICT_REFUSED
        case "BUDGET_EXCEEDED":
            return LINE_VERDICT_STOP
        case "QUOTA_EXCEEDED" if error.retry_after is None:  # the line alone exceeds a limit
            return LINE_VERDICT_REFUSED
        case "MODEL_REPLACED":
            return LINE_VERDICT_LATER
    if error.code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return LINE_VERDICT_STOP
    if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return LINE_VERDICT_REFUSED if has_own_timeout else LINE_VERDICT_LATER
    if error.code in _FINAL_CODES:
        return LINE_VERDICT_REFUSED
    return LINE_VERDICT_LATER if error.code in _PASSING_CODES else LINE_VERDICT_LOST
