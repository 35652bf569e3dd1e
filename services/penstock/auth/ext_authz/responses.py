"""Answers to a proxy: a caller passes with its identity, or receives the error that an edge would send."""

import base64
import json
import math
from collections.abc import Mapping
from types import MappingProxyType

import grpc
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import BoolValue

from penstock.chassis.errors import PUSHBACK_METADATA_KEY, PenstockError
from penstock.mesh.identity_header import HEADER
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.authorization_pb2 import (
    CheckHeader,
    CheckHeaderOption,
    CheckHttpStatus,
    CheckResponse,
    CheckStatus,
    DeniedResponse,
    OkResponse,
)

OVERWRITE_IF_EXISTS_OR_ADD = 2
# As edge/api/openai/errors.py; a test compares the answers. RESOURCE_EXHAUSTED is the caller's own limit here.
_STATUS: Mapping[grpc.StatusCode, int] = MappingProxyType(
    {
        grpc.StatusCode.UNAUTHENTICATED: 401,
        grpc.StatusCode.PERMISSION_DENIED: 403,
        grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
        grpc.StatusCode.UNAVAILABLE: 503,
    }
)
_TYPE: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        429: "rate_limit_error",
        503: "service_unavailable_error",
    }
)
_INVALID_KEY = frozenset({"KEY_MISSING", "KEY_UNKNOWN", "KEY_REVOKED"})


def passed(identity: Identity, header: str) -> CheckResponse:
    """Pass a request on with the identity header in place of any that the caller sent."""
    names = Struct()
    names.update({"tenant": identity.tenant_id, "key_id": identity.key_id})
    ok = OkResponse(headers=_options({HEADER: header}))
    return CheckResponse(status=CheckStatus(code=0), ok_response=ok, dynamic_metadata=names)


def denied(error: PenstockError, *, is_grpc: bool) -> CheckResponse:
    """Answer the caller of a call or of an HTTP request.

    The proxy makes a gRPC status of its own from the HTTP status, UNAVAILABLE for 429, unless the answer has one.
    """
    status = _STATUS.get(error.code, 500)
    reason = Struct()
    reason.update({"reason": error.reason})
    answer = DeniedResponse(
        status=CheckHttpStatus(code=status),
        headers=_options(_grpc_headers(error) if is_grpc else _http_headers(error, status)),
        body=error.message if is_grpc else _http_body(error, status),
    )
    code = CheckStatus(code=error.code.value[0])
    return CheckResponse(status=code, denied_response=answer, dynamic_metadata=reason)


def _grpc_headers(error: PenstockError) -> dict[str, str]:
    trailers = dict(error.trailing_metadata())
    details = trailers["grpc-status-details-bin"]
    assert isinstance(details, bytes), "a binary trailer"
    return {
        "grpc-status": str(error.code.value[0]),
        "grpc-status-details-bin": base64.b64encode(details).rstrip(b"=").decode(),
        PUSHBACK_METADATA_KEY: str(trailers[PUSHBACK_METADATA_KEY]),
    }


def _http_headers(error: PenstockError, status: int) -> dict[str, str]:
    headers = {
        "content-type": "application/json",
        "x-penstock-reason": error.reason,
        "x-should-retry": "false" if error.retry_after is None else "true",
    }
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))  # whole seconds by RFC 9110
        headers["retry-after-ms"] = str(math.ceil(error.retry_after * 1000))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def _http_body(error: PenstockError, status: int) -> str:
    return json.dumps(
        {
            "error": {
                "message": error.message,
                "type": _TYPE.get(status, "server_error"),
                "code": "invalid_api_key" if error.reason in _INVALID_KEY else error.reason.lower(),
                "param": None,
            }
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _options(headers: Mapping[str, str]) -> list[CheckHeaderOption]:
    return [
        CheckHeaderOption(
            header=CheckHeader(key=key, value=value),
            append=BoolValue(value=False),
            append_action=OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for key, value in headers.items()
    ]
