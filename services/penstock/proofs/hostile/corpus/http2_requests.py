"""Requests that HTTP/2 forbids (RFC 9113, 8.2 and 8.3): with a valid key at Envoy, and without one at the edge.

The server of gRPC accepts some of them. This is no gain for a caller whose key is valid, because the edge's own port is
not behind a proxy that could understand the request in another way.
"""

from collections.abc import Iterator, Sequence

from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase
from penstock.proofs.hostile.ports import GRPC_DOORS, Port, PortKind
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire.grpc_call import CallResult, call_headers, call_on, framed
from penstock.proofs.hostile.wire.http2 import open_http2

LIST_MODELS = "/penstock.v1.Inference/ListModels"
MODELS = "/v1/models"
Header = tuple[str | bytes, str | bytes]


def http2_request_cases(target: HostileTarget) -> Iterator[HostileCase]:
    key: Header = ("authorization", f"Bearer {target.api_key}")
    for port in target.ports_of(*GRPC_DOORS):
        for name, headers in forbidden_headers(key):
            sent = headers if port.kind is PortKind.FRONT else [each for each in headers if each != key]
            yield _case(name, port, sent)


def forbidden_headers(key: Header) -> Iterator[tuple[str, Sequence[Header]]]:
    valid = call_headers(LIST_MODELS, [key])
    named = dict(valid)

    def replaced(name: str, value: str | bytes) -> list[Header]:
        return [(each, value if each == name else old) for each, old in valid]

    def without(name: str) -> list[Header]:
        return [each for each in valid if each[0] != name]

    yield "no method", without(":method")
    yield "no path", without(":path")
    yield "no scheme", without(":scheme")
    yield "path without a slash", replaced(":path", LIST_MODELS[1:])
    yield "empty path", replaced(":path", "")
    yield "path of another host", replaced(":path", f"http://127.0.0.1:1{LIST_MODELS}")
    yield "path with a line feed", replaced(":path", f"{LIST_MODELS}\n")
    yield "path of 64 KiB", replaced(":path", "/" + "p" * 8_000)
    yield "path up and down", replaced(":path", f"/x/../{LIST_MODELS[1:]}/../../ListModels")
    yield "two paths", [*valid[:4], (":path", MODELS), *valid[4:]]
    yield "unknown pseudo header", [*valid[:4], (":tenant", "dev"), *valid[4:]]
    yield "pseudo header of a response", [*valid[:4], (":status", "200"), *valid[4:]]
    yield "pseudo header after others", [*without(":path"), (":path", named[":path"])]
    yield "method CONNECT", replaced(":method", "CONNECT")
    yield "method GET", replaced(":method", "GET")
    yield "method of text", replaced(":method", "POST /v1/models HTTP/1.1\r\nX: ")
    yield "name in upper case", [*valid, ("X-Upper", "1")]
    yield "name with a colon", [*valid, ("x:y", "1")]
    yield "name with a space", [*valid, ("x y", "1")]
    yield "empty name", [*valid, ("", "1")]
    yield "value with a line feed", [*valid, ("x-value", "1\r\nauthorization: x")]
    yield "value with a NUL", [*valid, ("x-value", b"1\x002")]
    yield "connection header", [*valid, ("connection", "close")]
    yield "transfer-encoding header", [*valid, ("transfer-encoding", "chunked")]
    yield "upgrade header", [*valid, ("upgrade", "h2c")]
    yield "content length of another body", [*valid, ("content-length", "4096")]
    yield "content type of text", replaced("content-type", "text/plain")
    yield "no content type", without("content-type")


def _case(name: str, port: Port, headers: Sequence[Header]) -> HostileCase:
    async def send() -> CaseOutcome:
        try:
            async with open_http2(port.endpoint) as connection:
                result = await call_on(connection, headers, framed(b""), ends=True, timeout=3.0, settle=0.4)
        except (OSError, TimeoutError) as error:
            result = CallResult(was_refused=True, reason=type(error).__name__)
        status = f"HTTP {result.http_status or 'none'}, status {result.status}"
        return CaseOutcome(
            is_accepted=result.is_ok,
            is_internal_error=result.status == 2,
            is_held=result.is_open,
            answer=status,
        )

    return HostileCase(group="HTTP/2 requests", name=name, port=port, send=send)
