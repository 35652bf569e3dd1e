"""Answers of an endpoint picker to a proxy."""

import json
import math
from collections.abc import Iterator
from http import HTTPStatus

import grpc

from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import PenstockError
from penstock.ext_proc.external_processor_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
)
from penstock.ext_proc.external_processor_pb2 import GrpcStatus as GrpcStatusMessage
from penstock.picker.errors import BodyTooLarge
from penstock.picker.exchange.metadata import DESTINATION, destination_metadata

MAX_PIECE_BYTES = 62 * 1024  # of a body that is sent on; proxies limit a message to 64 KiB

# The protocol has two statuses: no endpoint is ready, and the request is dropped. Proxies retry neither by themselves.
_STATUS = {
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
}
_OVERWRITE = HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD

HEADERS_CONTINUE = ProcessingResponse(request_headers=HeadersResponse())
BODY_CONTINUE = ProcessingResponse(request_body=BodyResponse())
TRAILERS_CONTINUE = ProcessingResponse(request_trailers=TrailersResponse())
RESPONSE_HEADERS_CONTINUE = ProcessingResponse(response_headers=HeadersResponse())
RESPONSE_BODY_CONTINUE = ProcessingResponse(response_body=BodyResponse())
RESPONSE_TRAILERS_CONTINUE = ProcessingResponse(response_trailers=TrailersResponse())


def headers_with(destinations: str) -> ProcessingResponse:
    """Answer the headers of a request with its endpoints."""
    return ProcessingResponse(
        request_headers=HeadersResponse(response=_routed(destinations)),
        dynamic_metadata=destination_metadata(destinations),
    )


def body_with(destinations: str) -> ProcessingResponse:
    """Answer the body of a request, whose headers the proxy still holds, with its endpoints."""
    return ProcessingResponse(
        request_body=BodyResponse(response=_routed(destinations)), dynamic_metadata=destination_metadata(destinations)
    )


def request_pieces(body: bytes, *, is_end: bool) -> Iterator[ProcessingResponse]:
    """Send a body of a request on, in pieces. `is_end`: no trailers follow."""
    for begin in range(0, len(body) or 1, MAX_PIECE_BYTES):
        piece = body[begin : begin + MAX_PIECE_BYTES]
        yield ProcessingResponse(request_body=_piece(piece, is_end=is_end and begin + MAX_PIECE_BYTES >= len(body)))


def response_piece(body: bytes, *, is_end: bool) -> ProcessingResponse:
    """Send a piece of a response on as it came."""
    return ProcessingResponse(response_body=_piece(body, is_end=is_end))


def wait_for(seconds: float) -> ProcessingResponse:
    """Tell the proxy how long the answer may take."""
    response = ProcessingResponse()
    set_seconds(response.override_message_timeout, seconds)
    return response


def rejection(error: PenstockError) -> ProcessingResponse:
    """Return the response that the client receives for an error of the picker, in the format of OpenAI."""
    status = _STATUS.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    if isinstance(error, BodyTooLarge):
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    headers = {"content-type": "application/json", "x-penstock-reason": error.reason}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))  # whole seconds by RFC 9110
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=status),
            headers=HeaderMutation(set_headers=[_header(name, text) for name, text in headers.items()]),
            body=_error_body(error, status),
            grpc_status=GrpcStatusMessage(status=error.code.value[0]),
            details=f"penstock_{error.reason.lower()}",
        )
    )


def _error_body(error: PenstockError, status: HTTPStatus) -> bytes:
    kind = "rate_limit_error" if status is HTTPStatus.TOO_MANY_REQUESTS else "server_error"
    if status in {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}:
        kind = "invalid_request_error"
    content = {"message": error.message, "type": kind, "code": error.reason.lower(), "param": None}
    return json.dumps({"error": content}, separators=(",", ":")).encode()


def _routed(destinations: str) -> CommonResponse:
    headers = HeaderMutation(set_headers=[_header(DESTINATION, destinations)])
    return CommonResponse(header_mutation=headers, clear_route_cache=True)


def _header(name: str, text: str) -> HeaderValueOption:
    return HeaderValueOption(header=HeaderValue(key=name, raw_value=text.encode()), append_action=_OVERWRITE)


def _piece(body: bytes, *, is_end: bool) -> BodyResponse:
    piece = StreamedBodyResponse(body=body, end_of_stream=is_end)
    return BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=piece)))
