"""Frames of HTTP/2 (RFC 9113) as bytes: their header, kinds, flags, error codes and settings."""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # section 3.4
HEAD: Final = Struct(">BHBBL")  # section 4.1: length in 24 bits, type, flags, stream
HEAD_BYTES: Final = HEAD.size
KIND_AT: Final = 3  # byte of the header with the type
PREFIX_BYTES: Final = 5  # before each gRPC message: 1 if it is compressed, and its length
MESSAGE_HEAD: Final = Struct(">BHBBLBL")  # the header of DATA and the prefix of a message
STREAM_BITS: Final = 0x7FFF_FFFF
INITIAL_WINDOW_BYTES: Final = 65_535  # section 6.9.2
INITIAL_FRAME_BYTES: Final = 16_384
LARGEST_FRAME_BYTES: Final = 16_777_215
LARGEST_WINDOW_BYTES: Final = 0x7FFF_FFFF
PING_BYTES: Final = 8

# Plain integers, because a comparison with a member of an enumeration costs more than the parsing of a frame.
DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20


class ErrorCode(IntEnum):
    """Section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC


class Setting(IntEnum):
    """Section 6.5.2."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class ConnectionFault(Exception):
    """The peer broke the rules of HTTP/2; the connection ends with GOAWAY."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


_SETTING: Final = Struct(">HL")
_NUMBER: Final = Struct(">L")
_GOAWAY: Final = Struct(">LL")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: Mapping[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(each, value) for each, value in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _NUMBER.pack(code))


def go_away(last_stream_id: int, code: ErrorCode) -> bytes:
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code))


def settings_in(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the settings. Raises ConnectionFault if the size of the payload is wrong."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS with {len(payload)} bytes")
    return (tuple[int, int](each) for each in _SETTING.iter_unpack(payload))


def number_in(payload: bytes, kind: str) -> int:
    """Return the 32 bits of a payload. Raises ConnectionFault if its size is another one."""
    if len(payload) != _NUMBER.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"{kind} with {len(payload)} bytes")
    return int.from_bytes(payload, "big")


def unpadded(payload: bytes, flags: int) -> bytes:
    """Return the payload of DATA or HEADERS without padding. Raises ConnectionFault if it is all padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]
