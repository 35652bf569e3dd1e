"""A raw HTTP/2 client connection: sends any frames in any order, and records what the server sends.

It checks nothing that it sends. It acknowledges settings and pings of the server, unless told to be silent.
"""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import hpack
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from penstock.chassis.lifecycle import background
from penstock.proofs.hostile.wire import CONNECTION_ERRORS
from penstock.proofs.hostile.wire.flow_control import SendWindows

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES = 9
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9  # types of frames
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20  # flags
CONNECT_TIMEOUT_S = 3.0  # s, with the TLS handshake
KEPT_BYTES = 1 << 16  # of the data of one stream; the rest is counted
KEPT_STREAMS = 20_000  # answers that are kept; further ones are only counted
RECEIVE_WINDOW = 1 << 20  # bytes that the server may send before this client grants more
MAX_WINDOW = 2**31 - 1

Headers = Iterable[tuple[str | bytes, str | bytes]]


@dataclass(slots=True)
class StreamAnswer:
    """What the server sent on one stream."""

    headers: list[tuple[bytes, bytes]] = field(default_factory=list)  # with trailers
    data: bytearray = field(default_factory=bytearray)
    has_ended: bool = False
    reset_code: int | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: bytes) -> str:
        """Return the last value of a header or trailer; empty if there is none."""
        return next((value.decode("latin-1") for key, value in reversed(self.headers) if key == name), "")


class Http2Connection:
    """One connection. `open_http2` opens it and reads from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, grants_window: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = hpack.Decoder()
        self._grants_window = grants_window
        self._next_stream = 1
        self.answers: dict[int, StreamAnswer] = {}
        self.counts = [0] * 256  # frames received, by type
        self.goaway_code: int | None = None
        self.max_streams: int | None = None  # as the server's settings say
        self._windows = SendWindows()
        self._window_changed = asyncio.Event()
        self.closed = asyncio.Event()

    def next_stream(self) -> int:
        self._next_stream += 2
        return self._next_stream - 2

    async def send(self, data: bytes) -> None:
        """Write bytes and wait until the transport has taken most of them. Does nothing on a closed connection."""
        if self.closed.is_set():
            return
        try:
            self._writer.write(data)
            await self._writer.drain()
        except CONNECTION_ERRORS:
            self.closed.set()

    async def send_data(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """Send data within the windows of the server; return early if the connection or the stream is closed."""
        view, answer = memoryview(data), self.answers.get(stream)
        while view and not self.closed.is_set() and not (answer and answer.has_ended):
            if granted := self._windows.take(stream, len(view)):
                chunk, view = view[:granted], view[granted:]
                await self.send(data_frame(stream, bytes(chunk), ends=ends and not view))
            else:
                self._window_changed.clear()
                await self._window_changed.wait()

    async def open_stream(self, headers: Headers, *, ends: bool = False) -> int:
        """Send a request's headers without use of the dynamic table; return the number of the stream."""
        stream = self.next_stream()
        self.answers[stream] = StreamAnswer()
        await self.send(headers_frame(stream, header_block(headers), ends=ends))
        return stream

    async def read(self) -> None:
        """Read frames until the server closes the connection."""
        try:
            while True:
                head = await self._reader.readexactly(FRAME_HEADER_BYTES)
                payload = await self._reader.readexactly(int.from_bytes(head[:3]))
                await self._on_frame(head[3], head[4], int.from_bytes(head[5:]) & MAX_WINDOW, payload)
        except (OSError, asyncio.IncompleteReadError, hpack.HPACKError):
            pass
        finally:
            self.closed.set()
            self._window_changed.set()
            for answer in self.answers.values():
                answer.changed.set()

    async def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.counts[kind] += 1
        match kind:
            case 0:  # DATA
                await self._on_data(flags, stream, payload)
            case 1 | 9:  # HEADERS and CONTINUATION; the servers under test send small blocks in one frame
                answer = self._answer(stream)
                answer.headers += self._decoder.decode(_unpadded(kind, flags, payload), raw=True)
                self._on_change(answer, has_ended=kind == HEADERS and bool(flags & END_STREAM))
            case 3:  # RST_STREAM
                answer = self._answer(stream)
                answer.reset_code = int.from_bytes(payload[:4])
                self._on_change(answer, has_ended=True)
            case 4 if not flags & ACK:
                self._read_settings(payload)
                await self.send(SettingsFrame(0, flags=["ACK"]).serialize())
            case 6 if not flags & ACK:
                await self.send(PingFrame(0, payload, flags=["ACK"]).serialize())
            case 7:  # GOAWAY
                self.goaway_code = int.from_bytes(payload[4:8])
            case 8:  # WINDOW_UPDATE
                self._windows.on_update(stream, int.from_bytes(payload[:4]) & MAX_WINDOW)
                self._window_changed.set()

    async def _on_data(self, flags: int, stream: int, payload: bytes) -> None:
        answer = self._answer(stream)
        answer.data += _unpadded(DATA, flags, payload)[: max(0, KEPT_BYTES - len(answer.data))]
        self._on_change(answer, has_ended=bool(flags & END_STREAM))
        if self._grants_window and payload:
            grants = [WindowUpdateFrame(each, window_increment=len(payload)).serialize() for each in (0, stream)]
            await self.send(b"".join(grants))

    def _answer(self, stream: int) -> StreamAnswer:
        if len(self.answers) >= KEPT_STREAMS:
            return self.answers.get(stream) or StreamAnswer()
        return self.answers.setdefault(stream, StreamAnswer())

    def _on_change(self, answer: StreamAnswer, *, has_ended: bool) -> None:
        answer.has_ended |= has_ended
        answer.changed.set()
        self._window_changed.set()  # a sender on an ended stream stops

    def _read_settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload[: len(payload) // 6 * 6]):
            if name == SettingsFrame.MAX_CONCURRENT_STREAMS:
                self.max_streams = value
            elif name == SettingsFrame.INITIAL_WINDOW_SIZE:
                self._windows.on_initial(value)
                self._window_changed.set()


def _unpadded(kind: int, flags: int, payload: bytes) -> bytes:
    if flags & PADDED and kind in (DATA, HEADERS):
        payload = payload[1 : len(payload) - payload[0]]
    return payload[5:] if flags & PRIORITY and kind == HEADERS else payload


def header_block(headers: Headers) -> bytes:
    """Encode headers as literals without indexing, so that a block is valid on any connection, repeatedly."""
    return b"".join(_literal(_bytes(name), _bytes(value)) for name, value in headers)


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + _length(len(name)) + name + _length(len(value)) + value


def _length(number: int) -> bytes:
    """Encode a length with HPACK's 7-bit prefix and without Huffman coding."""
    if number < 127:
        return bytes([number])
    out, number = bytearray([127]), number - 127
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def headers_frame(stream: int, block: bytes, *, ends: bool = False, ends_headers: bool = True) -> bytes:
    frame = HeadersFrame(stream, block)
    for flag, is_set in (("END_STREAM", ends), ("END_HEADERS", ends_headers)):
        if is_set:
            frame.flags.add(flag)
    return frame.serialize()


def data_frame(stream: int, data: bytes, *, ends: bool = False) -> bytes:
    return DataFrame(stream, data, flags=["END_STREAM"] if ends else []).serialize()


def reset_frame(stream: int) -> bytes:
    return RstStreamFrame(stream, error_code=8).serialize()  # CANCEL


def frames(*each: Frame) -> bytes:
    return b"".join(frame.serialize() for frame in each)


@asynccontextmanager
async def open_http2(
    address: tuple[str, int],
    tls: ssl.SSLContext | None = None,
    *,
    initial_window: int = RECEIVE_WINDOW,
    grants_window: bool = True,
) -> AsyncIterator[Http2Connection]:
    """Connect, send preface and settings, and read beside the block. Raises OSError or TimeoutError."""
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(*address, ssl=tls)
    connection = Http2Connection(reader, writer, grants_window=grants_window)
    try:
        async with background(connection.read()):
            settings = {SettingsFrame.INITIAL_WINDOW_SIZE: initial_window, SettingsFrame.ENABLE_PUSH: 0}
            await connection.send(PREFACE + SettingsFrame(0, settings).serialize())
            yield connection
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
