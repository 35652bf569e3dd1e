"""The ASGI application of the page: the document at `/`, and the present frame as JSON at `/frame`."""

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import orjson

from penstock.chassis.errors import InvalidArgument, NotFound, PenstockError
from penstock.chassis.operators.throttle import RefusalReport
from penstock.cli.dashboard.access import PageAccess
from penstock.cli.dashboard.document import Document
from penstock.cli.dashboard.frames import FrameSource

METHOD_NOT_ALLOWED = 405
HTTP_STATUS = {
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INVALID_ARGUMENT: METHOD_NOT_ALLOWED,
}
REPORTED_CODES = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED)
COMMON_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)

# Called with the peer and the error of the last refusal, and the number of refusals since the last report.
ReportRefusals = Callable[[str, PenstockError, int], None]
Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class DashboardApp:
    """Answers GET and HEAD of operators' browsers."""

    def __init__(self, document: Document, frames: FrameSource, access: PageAccess, report: ReportRefusals) -> None:
        self._document = document
        self._frames = frames
        self._access = access
        self._report = report
        self._refusals = RefusalReport()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            kind, body = await self._answer(scope)
        except PenstockError as error:
            if error.code in REPORTED_CODES and (count := self._refusals.record(time.monotonic())):
                self._report(_peer(scope), error, count)
            await _send_error(send, error)
            return
        headers = [(b"content-type", kind)]
        if kind.startswith(b"text/html"):
            headers.append((b"content-security-policy", self._document.policy.encode()))
        await _send(send, 200, headers, b"" if scope["method"] == "HEAD" else body)

    async def _answer(self, scope: Scope) -> tuple[bytes, bytes]:
        """Return media type and body; raises PenstockError."""
        headers, path = scope["headers"], scope["path"]
        self._access.check_host(headers)
        if scope["method"] not in {"GET", "HEAD"}:
            raise InvalidArgument("this page is only read", reason="METHOD_NOT_ALLOWED")
        if path == "/":
            return b"text/html; charset=utf-8", self._document.html
        if path != "/frame":
            raise NotFound(f"nothing is at {path[:64]}", reason="PATH_UNKNOWN")
        self._access.check_data(headers, _peer(scope), time.monotonic())
        return b"application/json", await self._frames.latest()


def _peer(scope: Scope) -> str:
    """Return the peer as gRPC writes it."""
    client = scope.get("client")
    return f"ipv4:{client[0]}:{client[1]}" if client else "unix:"


async def _send_error(send: Send, error: PenstockError) -> None:
    status = HTTP_STATUS[error.code]
    headers = [(b"content-type", b"application/json")]
    if status == METHOD_NOT_ALLOWED:
        headers.append((b"allow", b"GET, HEAD"))
    if error.retry_after is not None:
        headers.append((b"retry-after", str(math.ceil(error.retry_after)).encode()))
    body = orjson.dumps({"error": {"reason": error.reason, "message": str(error)}})
    await _send(send, status, headers, body)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, *COMMON_HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
