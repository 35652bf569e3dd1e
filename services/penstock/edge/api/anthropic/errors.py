"""Error body of the Messages API. Statuses and headers are those of all endpoints."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from penstock.chassis.errors import PenstockError
from penstock.edge.api.openai.errors import http_status

# The API itself has the status 529 for `overloaded_error`. Here it is 503, which proxies and clients know.
_TYPE: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)


def error_body(error: PenstockError) -> dict[str, Any]:
    status = http_status(error)
    kind = _TYPE.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}
