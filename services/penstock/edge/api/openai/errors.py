"""Conversion of errors to an HTTP status, headers and the API's error body."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import grpc
import orjson

from penstock.chassis.errors import PenstockError, QuotaExceeded, Unimplemented
from penstock.edge.api.openai.body.fields import BodyStalled, BodyTooLarge, BodyTooSlow, HeadStalled, HeadTooLarge

_STATUS: Mapping[grpc.StatusCode, int] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: 400,
        grpc.StatusCode.FAILED_PRECONDITION: 400,
        grpc.StatusCode.UNAUTHENTICATED: 401,
        grpc.StatusCode.PERMISSION_DENIED: 403,
        grpc.StatusCode.NOT_FOUND: 404,
        grpc.StatusCode.ALREADY_EXISTS: 409,
        grpc.StatusCode.CANCELLED: 499,
        grpc.StatusCode.UNIMPLEMENTED: 501,
        grpc.StatusCode.RESOURCE_EXHAUSTED: 503,  # the edge or queue is full; the caller's own limit is 429
        grpc.StatusCode.UNAVAILABLE: 503,
        grpc.StatusCode.ABORTED: 503,
        grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    }
)
_TYPE: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        429: "rate_limit_error",
        503: "service_unavailable_error",
        504: "timeout_error",
    }
)
# Codes that clients of the API branch on. Every other reason becomes a code in lower case.
_CODE: Mapping[str, str] = MappingProxyType(
    {
        "KEY_MISSING": "invalid_api_key",
        "KEY_UNKNOWN": "invalid_api_key",
        "KEY_REVOKED": "invalid_api_key",
        "MODEL_UNKNOWN": "model_not_found",
        "PROMPT_TOO_LONG": "context_length_exceeded",
        "QUOTA_EXCEEDED": "rate_limit_exceeded",
        "BUDGET_EXCEEDED": "insufficient_quota",
    }
)


class MethodNotAllowed(Unimplemented):
    """The path is served with another method only."""

    default_reason = "METHOD_NOT_ALLOWED"

    def __init__(self, path: str, allowed: str) -> None:
        super().__init__(f"{path} accepts {allowed} only")
        self.allowed = allowed


# Error types whose status differs from that of their code.
_STATUS_OF_KIND: Mapping[type[PenstockError], int] = MappingProxyType(
    {
        MethodNotAllowed: 405,
        BodyStalled: 408,
        BodyTooSlow: 408,
        HeadStalled: 408,
        BodyTooLarge: 413,
        QuotaExceeded: 429,
        HeadTooLarge: 431,
    }
)
# Reasons that are the caller's own limit.
_STATUS_OF_REASON: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("TOO_MANY_FAILURES", "FILES_FULL", "TOO_MANY_BATCHES"), 429)
)


@dataclass(frozen=True, slots=True)
class HttpError:
    status: int
    headers: Mapping[str, str]
    body: bytes


def http_status(error: PenstockError) -> int:
    known = (status for kind, status in _STATUS_OF_KIND.items() if isinstance(error, kind))
    return next(known, _STATUS_OF_REASON.get(error.reason) or _STATUS.get(error.code, 500))


def error_body(error: PenstockError) -> dict[str, Any]:
    status = http_status(error)
    return {
        "error": {
            "message": error.message,
            "type": _TYPE.get(status, "invalid_request_error" if status < 500 else "server_error"),
            "code": _CODE.get(error.reason, error.reason.lower()),
            "param": error.field_violations[0].field if error.field_violations else None,
        }
    }


def http_error(error: PenstockError, body_of: Callable[[PenstockError], dict[str, Any]] = error_body) -> HttpError:
    """Return the response of an error. `body_of` returns the body of the caller's API."""
    status = http_status(error)
    return HttpError(status, _headers(error, status), orjson.dumps(body_of(error)))


def _headers(error: PenstockError, status: int) -> dict[str, str]:
    """Return the headers. `x-should-retry` is always set, because clients otherwise retry every 5xx status."""
    headers = {
        "content-type": "application/json",
        "x-penstock-reason": error.reason,
        "x-should-retry": "false" if error.retry_after is None else "true",
    }
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))  # whole seconds by RFC 9110
        headers["retry-after-ms"] = str(math.ceil(error.retry_after * 1000))
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = error.allowed
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers
