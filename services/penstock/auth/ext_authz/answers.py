"""Answers to a proxy as HTTP/1.1 responses: a caller passes with its identity, or receives an edge's error."""

import base64
import json
import math
from collections.abc import Collection, Mapping
from http import HTTPStatus
from types import MappingProxyType

import grpc

from penstock.chassis.errors import PUSHBACK_METADATA_KEY, PenstockError
from penstock.mesh import regions_header
from penstock.mesh.identity_header import HEADER

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


def passed(header: str, allowed_regions: Collection[str]) -> bytes:
    """Return the response for a known caller, whose request goes on with the identity header."""
    regions = ",".join(allowed_regions) or regions_header.ALL_REGIONS
    return _response(200, {HEADER: header, regions_header.HEADER: regions}, b"")


def denied(error: PenstockError, *, is_grpc: bool) -> bytes:
    """Return the response that the proxy sends to the caller of a call or of an HTTP request.

    The proxy makes a gRPC status of its own from the HTTP status, UNAVAILABLE for 429, unless the response has one.
    """
    status = _STATUS.get(error.code, 500)
    if is_grpc:
        return _response(status, _grpc_headers(error), error.message.encode())
    return _response(status, _http_headers(error, status), _http_body(error, status))


def plain(status: int) -> bytes:
    """Return a response without headers or a body, for requests that are no checks."""
    return _response(status, {}, b"")


def _response(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"content-length: {len(body)}\r\n\r\n")
    return "\r\n".join(lines).encode() + body


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


def _http_body(error: PenstockError, status: int) -> bytes:
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
    ).encode()
