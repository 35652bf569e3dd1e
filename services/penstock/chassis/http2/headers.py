"""Blocks of headers that arrive in several frames, and the bound of frames that carry no message."""

import time

from hpack import Decoder
from hpack.exceptions import HPACKError

from penstock.chassis.http2 import frames
from penstock.chassis.http2.frames import ConnectionFault, ErrorCode
from penstock.chassis.http2.stream import Header

HEADER_BYTES = 16 << 10  # of all headers of a message, decoded
# Frames in one second that carry no message: pings, settings, resets, empty data. An honest peer sends a few.
MAX_CONTROL_FRAMES = 1_000
CONTROL_INTERVAL_S = 1.0
PRIORITY_BYTES = 5  # of the dependency and weight of a stream, which are ignored


class ControlBudget:
    """Counts frames that carry no message, and ends a connection with too many of them."""

    __slots__ = ("_count", "_since")

    def __init__(self) -> None:
        self._count, self._since = 0, 0.0

    def use(self) -> None:
        """Count a frame. Raises ConnectionFault if there were too many in this second."""
        now = time.monotonic()
        if now > self._since + CONTROL_INTERVAL_S:
            self._since, self._count = now, 0
        self._count += 1
        if self._count > MAX_CONTROL_FRAMES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without messages")


class HeaderBlock:
    """The headers that are being received, if any, and the decoder of the connection (RFC 7541)."""

    __slots__ = ("_decoder", "_flags", "_parts", "stream_id")

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=HEADER_BYTES)
        self._parts = bytearray()
        self._flags = 0
        self.stream_id = 0  # of headers that are not complete; 0: none

    @property
    def ends_stream(self) -> bool:
        return bool(self._flags & frames.END_STREAM)

    def begin(self, stream_id: int, flags: int, payload: bytes) -> tuple[Header, ...] | None:
        """Take HEADERS. Return all headers if they are complete. Raises ConnectionFault."""
        if stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
        self.stream_id, self._flags = stream_id, flags
        block = frames.unpadded(payload, flags)
        return self.add(stream_id, flags, block[PRIORITY_BYTES:] if flags & frames.WITH_PRIORITY else block)

    def add(self, stream_id: int, flags: int, payload: bytes) -> tuple[Header, ...] | None:
        """Take CONTINUATION. Return all headers if they are complete. Raises ConnectionFault."""
        if stream_id != self.stream_id or not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without headers before it")
        self._parts += payload
        if len(self._parts) > HEADER_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {HEADER_BYTES} bytes")
        if not flags & frames.END_HEADERS:
            return None
        block, self._parts, self.stream_id = bytes(self._parts), bytearray(), 0
        try:
            return tuple(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"headers cannot be decoded: {error}") from error
