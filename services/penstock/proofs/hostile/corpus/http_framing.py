"""Request smuggling: requests whose length two readers may understand differently.

All requests have a valid key, and the first of each is no valid completion, so that a success among the responses shows
that a server executed the request that is smuggled.
"""

from collections.abc import Iterator

from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase, http_outcome
from penstock.proofs.hostile.ports import HTTP_DOORS, Port
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire import http1

PATH = "/v1/completions"


def smuggled(key: str) -> bytes:
    return http1.request("GET", "/v1/models", [("Authorization", f"Bearer {key}")])


def http_framing_cases(target: HostileTarget) -> Iterator[HostileCase]:
    for port in target.ports_of(*HTTP_DOORS):
        for name, sent in ambiguous_requests(target.api_key):
            yield _case(name, port, sent)


def _case(name: str, port: Port, sent: bytes) -> HostileCase:
    async def send() -> CaseOutcome:
        return http_outcome(await http1.exchange(port.endpoint, sent))

    return HostileCase(group="HTTP framing", name=name, port=port, send=send)


def ambiguous_requests(api_key: str) -> Iterator[tuple[str, bytes]]:
    """Yield requests with framing that has to be refused, followed by another request."""
    inner, start = smuggled(api_key), f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api_key}\r\n"
    end, size = b"0\r\n\r\n", str(len(inner))
    chunk = f"{len(inner):x}\r\n".encode() + inner + b"\r\n" + end
    framings = {
        "length and chunked": f"Content-Length: {size}\r\nTransfer-Encoding: chunked",
        "chunked and length": f"Transfer-Encoding: chunked\r\nContent-Length: {size}",
        "two lengths": f"Content-Length: 5\r\nContent-Length: {size}",
        "lengths in a list": f"Content-Length: 5, {size}",
        "length with a sign": "Content-Length: +5",
        "negative length": "Content-Length: -1",
        "length in hexadecimal": "Content-Length: 0x5",
        "length of 2**64 + 5": "Content-Length: 18446744073709551621",
        "length with a space inside": "Content-Length: 0 5",
        "gzip, chunked": "Transfer-Encoding: gzip, chunked",
        "chunked, identity": "Transfer-Encoding: chunked, identity",
        "chunked twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "unknown coding": "Transfer-Encoding: xchunked",
        "space before the colon": "Transfer-Encoding : chunked",
        "vertical tab in the value": "Transfer-Encoding: \x0bchunked",
        "folded header": "Transfer-Encoding:\r\n chunked",
        "NUL in a name": "Transfer-\x00Encoding: chunked",
        "header line without a colon": f"Content-Length: 5\r\nchunked\r\nX-Length: {size}",
        "carriage return alone": f"X: a\rContent-Length: {size}",
        "line feed alone before a header": f"X: a\n Content-Length: {size}",
    }
    for name, framing in framings.items():
        head = f"{start}{framing}\r\n\r\n".encode("latin-1")
        yield name, head + end + inner
    chunked = f"{start}Transfer-Encoding: chunked\r\n\r\n".encode()
    sizes = {
        "chunk size with a sign": b"+5\r\nhello\r\n",
        "negative chunk size": b"-5\r\nhello\r\n",
        "chunk size in 0x": b"0x5\r\nhello\r\n",
        "chunk size of 17 digits": b"ffffffffffffffff5\r\nhello\r\n",
        "chunk without its line end": b"5\r\nhello",
        "empty chunk size": b"\r\nhello\r\n",
        "chunk longer than its size": b"3\r\nhello\r\n",
    }
    for name, body in sizes.items():
        yield name, chunked + body + end + inner
    yield "a request inside a chunk", chunked + chunk
    yield "a request inside a body", http1.request("POST", PATH, [("Content-Type", "application/json")], inner)
    yield "HTTP/0.9", b"GET /v1/models\r\n" + inner
    yield "HTTP/1.0 with chunks", chunked.replace(b"HTTP/1.1", b"HTTP/1.0") + end + inner
    yield "unknown version", b"GET /v1/models HTTP/9.9\r\nHost: localhost\r\n\r\n" + inner
    yield "two hosts", b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"
    yield "no host", b"GET /v1/models HTTP/1.1\r\n\r\n"
    yield "TLS hello", bytes.fromhex("16030100a50100") + b"\x00" * 160 + inner
