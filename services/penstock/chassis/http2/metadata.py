"""Headers of a call: gRPC metadata, status and timeout, as bytes of HTTP/2 headers."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import TypeAlias
from urllib.parse import quote, unquote

import grpc

Value: TypeAlias = str | bytes
Metadata: TypeAlias = tuple[tuple[str, Value], ...]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

CONTENT_TYPE = (b"content-type", b"application/grpc")
BINARY_SUFFIX = "-bin"  # of keys whose values are bytes, in base64 on the wire
TIMEOUT_DIGITS = 8
_NANOS_BY_UNIT = {"H": 3_600 * 10**9, "M": 60 * 10**9, "S": 10**9, "m": 10**6, "u": 10**3, "n": 1}
_UNITS = tuple(reversed(_NANOS_BY_UNIT.items()))  # the finest first
_OWN_HEADERS = frozenset(("te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"))
_OWN_TRAILERS = frozenset(("grpc-status", "grpc-message"))
_CODES: Mapping[int, grpc.StatusCode] = {each.value[0]: each for each in grpc.StatusCode}


def encoded(metadata: Iterable[tuple[str, Value]]) -> list[tuple[bytes, bytes]]:
    """Return metadata as headers. Values of keys that end in `-bin` are bytes."""
    return [
        (key.encode(), base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value.encode())
        for key, value in metadata
    ]


def decoded(headers: Headers) -> Metadata:
    """Return the metadata in headers, without pseudo-headers and those of gRPC itself.

    A value that is no text is given as bytes.
    """
    named = ((key.decode("latin-1"), value) for key, value in headers if not key.startswith(b":"))
    return tuple((key, _value_of(key, value)) for key, value in named if key not in _OWN_HEADERS | _OWN_TRAILERS)


def _value_of(key: str, value: bytes) -> Value:
    if key.endswith(BINARY_SUFFIX):
        try:
            return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
        except binascii.Error:
            return value
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        return value


def status_headers(code: grpc.StatusCode, details: str) -> list[tuple[bytes, bytes]]:
    number: int = code.value[0]
    headers = [(b"grpc-status", str(number).encode())]
    if details:
        headers.append((b"grpc-message", quote(details, safe=" !\"#$&'()*+,/:;<=>?@[]^`{|}\\").encode()))
    return headers


def status_in(trailers: Headers) -> tuple[grpc.StatusCode, str]:
    """Return the status and its text; UNKNOWN if the trailers have none."""
    found = dict(trailers)
    number = found.get(b"grpc-status", b"")
    code = _CODES.get(int(number) if number.isdigit() else -1, grpc.StatusCode.UNKNOWN)
    return code, unquote(found.get(b"grpc-message", b"").decode("latin-1"))


def encoded_timeout(seconds: float) -> bytes:
    """Return the value of `grpc-timeout`: at most eight digits and a unit."""
    nanos = max(0, round(seconds * 1e9))
    for unit, length in _UNITS:
        if nanos // length < 10**TIMEOUT_DIGITS:
            return f"{nanos // length}{unit}".encode()
    return b"99999999H"


def decoded_timeout(value: bytes) -> float | None:
    """Return the seconds of a `grpc-timeout`; None if it is malformed."""
    text = value.decode("latin-1")
    digits, nanos = text[:-1], _NANOS_BY_UNIT.get(text[-1:])
    if nanos is None or not digits.isdecimal() or len(digits) > TIMEOUT_DIGITS:
        return None
    return int(digits) * nanos / 1e9
