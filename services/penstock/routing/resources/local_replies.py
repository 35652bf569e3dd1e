"""Replies of the proxy itself, in the format of the API's errors.

A reply over gRPC has the status and details that an edge would send. A reply over HTTP has the JSON body of the API.
The body of a direct response is its message alone; `local_replies` makes JSON of it.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import replace

from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Struct

from penstock.chassis.errors import (
    PUSHBACK_METADATA_KEY,
    PenstockError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from penstock.mesh import regions

KEY_MISSING = Unauthenticated("send an API key: `authorization: Bearer pk_...`", reason="KEY_MISSING")
PATH_UNKNOWN = Unimplemented(
    "nothing is served at this path; the gRPC API is penstock.v1.Inference, the HTTP API is below /v1",
    reason="PATH_UNKNOWN",
)
REGION_NOT_ALLOWED = PermissionDenied(
    "the tenant does not allow a region that can serve this call; send it to the door of a region that it allows",
    reason=regions.REGION_NOT_ALLOWED,
)
REGION_DRAINED = Unavailable("this region is drained and accepts no guests", reason=regions.REGION_DRAINED)
HTTP_STATUS: Mapping[str, int] = {  # Envoy derives the gRPC status from it
    "KEY_MISSING": 401,
    regions.REGION_NOT_ALLOWED: 403,
    "PATH_UNKNOWN": 404,
    regions.REGION_DRAINED: 503,
}
DENIED_BY_AUTH = "UAEX"  # response flag
# No edge is healthy, or none accepts a connection. A proxy of another region repeats such a call elsewhere.
UNSERVED_FLAGS = ("UH", "UF")
UNSERVED_HEADER = "x-penstock-unserved"
REPLY_CODE = "%RESPONSE_CODE_DETAILS%"


def reply(error: PenstockError, *, is_grpc: bool, name: str = "", match: route.RouteMatch | None = None) -> route.Route:
    """Return a route that ends a gRPC call or answers an HTTP request with `error`."""
    body = core.DataSource(inline_string=error.message)
    headers = _grpc_headers(error) if is_grpc else _http_headers(error)
    return route.Route(
        name=name,
        match=match,
        direct_response=route.DirectResponseAction(status=HTTP_STATUS[error.reason], body=body),
        response_headers_to_add=[set_header(header, value) for header, value in headers.items()],
    )


def _grpc_headers(error: PenstockError) -> dict[str, str]:
    details = base64.b64encode(error.status().SerializeToString()).decode().rstrip("=")
    return {"grpc-status-details-bin": details, PUSHBACK_METADATA_KEY: "-1"}


def _http_headers(error: PenstockError) -> dict[str, str]:
    headers = {"x-penstock-reason": error.reason, "x-should-retry": "false"}
    if HTTP_STATUS[error.reason] == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def set_header(name: str, value: str) -> core.HeaderValueOption:
    return core.HeaderValueOption(
        header=core.HeaderValue(key=name, value=value),
        append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def local_replies(*, is_region_door: bool = False) -> hcm.LocalReplyConfig:
    """Format replies over HTTP as an error of the API. Replies over gRPC, and those that auth wrote, stay unchanged.

    `is_region_door`: replies to calls that no edge has accepted have `UNSERVED_HEADER`.
    """
    return hcm.LocalReplyConfig(
        mappers=[
            *(_unserved() if is_region_door else ()),
            hcm.ResponseMapper(filter=_all_of(_over_http(), _denied_by_auth()), body_format_override=_auth_body()),
            _mapper(_status("EQ", 401), kind="authentication_error", code="invalid_api_key"),
            _mapper(_status("EQ", 403), kind="permission_error", code="region_not_allowed"),
            _mapper(_status("EQ", 404), kind="invalid_request_error", code="path_unknown"),
            _mapper(_status("LE", 499), kind="invalid_request_error", code=REPLY_CODE),
            _mapper(_status("GE", 500), kind="server_error", code=REPLY_CODE),
        ]
    )


def _unserved() -> Iterator[hcm.ResponseMapper]:
    flags = accesslog.AccessLogFilter(response_flag_filter=accesslog.ResponseFlagFilter(flags=list(UNSERVED_FLAGS)))
    over_http = _mapper(flags, kind="server_error", code=REPLY_CODE)
    for mapper in (over_http, hcm.ResponseMapper(filter=flags)):
        yield replace(mapper, headers_to_add=[set_header(UNSERVED_HEADER, "1")])


def _mapper(status: accesslog.AccessLogFilter, *, kind: str, code: str) -> hcm.ResponseMapper:
    error = {"message": "%LOCAL_REPLY_BODY%", "type": kind, "code": code, "param": None}
    return hcm.ResponseMapper(
        filter=_all_of(_over_http(), status),
        body_format_override=core.SubstitutionFormatString(json_format=Struct.from_dict({"error": error})),
    )


def _auth_body() -> core.SubstitutionFormatString:
    body = core.DataSource(inline_string="%LOCAL_REPLY_BODY%")
    return core.SubstitutionFormatString(text_format_source=body, content_type="application/json")


def _over_http() -> accesslog.AccessLogFilter:
    not_grpc = route.HeaderMatcher(
        name="content-type",
        string_match=matcher.StringMatcher(prefix="application/grpc"),
        invert_match=True,
        treat_missing_header_as_empty=True,
    )
    return accesslog.AccessLogFilter(header_filter=accesslog.HeaderFilter(header=not_grpc))


def _denied_by_auth() -> accesslog.AccessLogFilter:
    return accesslog.AccessLogFilter(response_flag_filter=accesslog.ResponseFlagFilter(flags=[DENIED_BY_AUTH]))


def _status(comparison: str, code: int) -> accesslog.AccessLogFilter:
    # The runtime key is required and never set; the default value is the bound.
    bound = core.RuntimeUInt32(default_value=code, runtime_key=f"penstock.local_reply.{comparison.lower()}_{code}")
    compared = accesslog.ComparisonFilter(op=accesslog.ComparisonFilterOp[comparison], value=bound)
    return accesslog.AccessLogFilter(status_code_filter=accesslog.StatusCodeFilter(comparison=compared))


def _all_of(*filters: accesslog.AccessLogFilter) -> accesslog.AccessLogFilter:
    return accesslog.AccessLogFilter(and_filter=accesslog.AndFilter(filters=list(filters)))
