"""One HTTP/2 connection (RFC 9113): bytes of the socket to events of streams, and back. Base of both of its ends.

What a peer can make this end do or keep is bounded: headers and frames without messages by `headers.py`; streams, their
windows and all that is held for a connection by `limits.py`. Header compression is that of `hpack`. Frames are read and
written here: a message through `h2` takes about 250 Python calls, and costs twice as much CPU.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import structlog
from hpack import Encoder

from penstock.chassis.http2 import frames
from penstock.chassis.http2.frames import ConnectionFault, ErrorCode, Setting
from penstock.chassis.http2.headers import HEADER_BYTES, ControlBudget, HeaderBlock
from penstock.chassis.http2.limits import Http2Limits
from penstock.chassis.http2.stream import Header, Stream, StreamBroken

log = structlog.get_logger()

CONNECTION_WINDOW_BYTES = 16 << 20
FRAME_BYTES = 1 << 16  # of a frame that the peer may send


class Connection(asyncio.Protocol):
    """One end of one connection. `lost` holds the reason once it is closed."""

    def __init__(self, limits: Http2Limits, *, is_client: bool) -> None:
        self.streams: dict[int, Stream] = {}
        self.lost = ""
        self.is_congested = False  # the socket takes no more bytes now
        self.send_window = frames.INITIAL_WINDOW_BYTES
        self.send_frame_bytes = frames.INITIAL_FRAME_BYTES  # that the peer accepts in one frame
        self.has_received = True  # anything, since a server's connection looked last
        self.transport: Any = None
        self.peer = ""  # as gRPC names it; of a server's connection
        self.auth_context: dict[str, list[bytes]] = {}  # of a server's connection with certificates
        self._is_client: Final = is_client
        self._limits = limits
        self._unsent: list[bytes] = []  # frames of this turn
        self._received = b""  # bytes of a frame that is not complete
        self._has_preface = is_client  # of a client
        self.highest_stream = 0  # that the client has opened
        self.running_calls = 0  # of a client, also those whose streams have been reset
        self.is_going_away = False  # this end opens no further streams of the peer
        self._has_sent_message = False  # since the last ping of the peer
        self._peer_stream_window = frames.INITIAL_WINDOW_BYTES
        self._receive_window = CONNECTION_WINDOW_BYTES
        self._block = HeaderBlock()
        self._control = ControlBudget()
        self._encoder = Encoder()

    # Of the socket.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        own = (
            {Setting.ENABLE_PUSH: 0} if self._is_client else {Setting.MAX_CONCURRENT_STREAMS: self._limits.max_streams}
        )
        limits = {
            Setting.INITIAL_WINDOW_SIZE: self._limits.window_bytes,
            Setting.MAX_FRAME_SIZE: FRAME_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: HEADER_BYTES,
        }
        self._unsent = [
            frames.PREFACE if self._is_client else b"",
            frames.settings({**own, **limits}),
            frames.window_update(0, CONNECTION_WINDOW_BYTES - frames.INITIAL_WINDOW_BYTES),
        ]
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        self.has_received = True
        try:
            self._received = self._read_frames(self._received + data if self._received else data)
        except ConnectionFault as fault:
            log.warning("http2_connection_closed", peer=self.peer, because=str(fault))
            self._unsent.append(frames.go_away(self.highest_stream, fault.code))
            self.close(f"the peer broke the rules of HTTP/2: {fault}")
            return
        if self._unsent:
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "the connection was closed")

    def pause_writing(self) -> None:
        self.is_congested = True

    def resume_writing(self) -> None:
        self.is_congested = False
        self._send_more()
        self.flush()

    def write(self, frame: bytes) -> None:
        """Write a frame, which `flush` sends."""
        self._unsent.append(frame)

    def flush(self) -> None:
        """Give the socket the frames that were written."""
        if self._unsent and not self.lost:
            self.transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def close(self, reason: str) -> None:
        """Close the connection. Bytes that the peer does not take are dropped."""
        if self.transport and not self.lost:
            self.flush()
            if self.is_congested:
                self.transport.abort()
            else:
                self.transport.close()
        self._end(reason)

    # For streams.

    def send_headers(self, stream_id: int, headers: Iterable[Header], *, is_end: bool = False) -> None:
        block, flags = self._encoder.encode(headers), frames.END_STREAM if is_end else 0
        parts = [block[at : at + self.send_frame_bytes] for at in range(0, len(block), self.send_frame_bytes)]
        for index, part in enumerate(parts):
            last = frames.END_HEADERS if index == len(parts) - 1 else 0
            kind = frames.CONTINUATION if index else frames.HEADERS
            self._unsent.append(frames.frame(kind, last | (0 if index else flags), stream_id, part))

    def send_message(self, stream: Stream, message: bytes) -> bool:
        """Send a whole message in one frame. Return False, and send nothing, if the windows do not allow it."""
        size = len(message) + frames.PREFIX_BYTES
        if size > stream.send_window or size > self.send_window or size > self.send_frame_bytes or self.is_congested:
            return False
        stream.send_window -= size
        self.send_window -= size
        self._has_sent_message = True
        head = frames.MESSAGE_HEAD.pack(size >> 16, size & 0xFFFF, frames.DATA, 0, stream.id, 0, len(message))
        self._unsent.append(head)
        self._unsent.append(message)
        return True

    def send_data(self, stream: Stream, data: memoryview) -> int:
        """Send as much of `data` as one frame and the windows allow. Return its bytes."""
        size = max(0, min(len(data), stream.send_window, self.send_window, self.send_frame_bytes))
        if size:
            stream.send_window -= size
            self.send_window -= size
            self._has_sent_message = True
            self._unsent.append(frames.frame(frames.DATA, 0, stream.id, bytes(data[:size])))
        return size

    def end_stream(self, stream: Stream) -> None:
        """End our side of the stream."""
        self._unsent.append(frames.frame(frames.DATA, frames.END_STREAM, stream.id))

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Forget a stream. It ends for both sides, unless both have ended it."""
        if self.streams.pop(stream.id, None):
            self._unsent.append(frames.rst_stream(stream.id, code))
            self.flush()

    def forget(self, stream: Stream) -> None:
        """Forget a stream that both sides have ended."""
        self.streams.pop(stream.id, None)

    def extend_window(self, stream: Stream, size: int) -> None:
        """Let the peer send `size` more bytes on the stream."""
        stream.receive_window += size
        if not (stream.is_ended or self.lost):
            self._unsent.append(frames.window_update(stream.id, size))

    # For the two ends.

    @property
    def has_partial_headers(self) -> bool:
        """Whether the preface or a block of headers of the peer has begun and is not complete."""
        is_within_frame = len(self._received) > frames.KIND_AT and self._received[frames.KIND_AT] == frames.HEADERS
        return not self._has_preface or bool(self._block.stream_id) or is_within_frame

    def on_request(self, stream: Stream) -> None:
        """A client has opened a stream."""

    def on_closed(self) -> None:
        """The connection is closed. Streams know already."""

    # Frames.

    def _read_frames(self, data: bytes) -> bytes:
        """Handle all complete frames, and return the rest. Raises ConnectionFault."""
        at, end = 0, len(data)
        if not self._has_preface:
            if end < len(frames.PREFACE) and frames.PREFACE.startswith(data):
                return data
            if not data.startswith(frames.PREFACE):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the client does not speak HTTP/2")
            self._has_preface, at = True, len(frames.PREFACE)
        while end - at >= frames.HEAD_BYTES:
            high, low, kind, flags, stream_id = frames.HEAD.unpack_from(data, at)
            size = high << 16 | low
            if size > FRAME_BYTES:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame has {size} bytes")
            begin = at + frames.HEAD_BYTES
            if end - begin < size:
                break
            at = begin + size
            stream_id &= frames.STREAM_BITS
            if self._block.stream_id and kind != frames.CONTINUATION:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame stands between the frames of headers")
            if kind == frames.DATA:
                self._on_data(stream_id, flags, data[begin:at])
            elif (handler := _HANDLERS.get(kind)) is not None:
                handler(self, stream_id, flags, data[begin:at])
            else:
                self._control.use()  # of an unknown kind, which is ignored
        return data[at:] if at < end else b""

    def _on_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        stream = self.streams.get(stream_id)
        if stream is None and (stream_id == 0 or stream_id > self.highest_stream):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which is not open")
        if self._receive_window < 0 or (stream and size > stream.receive_window):
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the peer sent more than its window")
        if self._receive_window <= CONNECTION_WINDOW_BYTES // 2:  # the windows of streams bound what is kept
            self._unsent.append(frames.window_update(0, CONNECTION_WINDOW_BYTES - self._receive_window))
            self._receive_window = CONNECTION_WINDOW_BYTES
            self._check_held()
        if not size and not flags & frames.END_STREAM:
            self._control.use()
        if stream:
            if size:
                stream.on_data(frames.unpadded(payload, flags), size)
            if flags & frames.END_STREAM:
                stream.on_end()

    def _check_held(self) -> None:
        """Raise ConnectionFault if too much is held. Called once in half a window of the connection."""
        held, limit = (
            sum(each.held_bytes for each in self.streams.values()),
            self._limits.held_bytes,
        )
        if held > limit:
            text = f"messages of {held} bytes are not complete or not read; allowed: {limit} on a connection"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if (headers := self._block.begin(stream_id, flags, payload)) is not None:
            self._on_block(stream_id, headers)

    def _on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if not payload:
            self._control.use()
        if (headers := self._block.add(stream_id, flags, payload)) is not None:
            self._on_block(stream_id, headers)

    def _on_block(self, stream_id: int, headers: tuple[Header, ...]) -> None:
        stream = self.streams.get(stream_id)
        if stream is None and not self._is_client and stream_id > self.highest_stream:
            stream = self._open(stream_id, headers)
        elif stream:
            stream.on_headers(headers)
        if stream and self._block.ends_stream:
            stream.on_end()

    def _open(self, stream_id: int, headers: tuple[Header, ...]) -> Stream | None:
        """Open a stream of a client; None if it has too many, or if the connection is about to be closed."""
        if stream_id % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a client may not open stream {stream_id}")
        self.highest_stream = stream_id
        is_full = len(self.streams) >= self._limits.max_streams or self.running_calls >= self._limits.running_calls
        if is_full or self.is_going_away:
            self._control.use()
            self.write(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return None
        stream = self.new_stream(stream_id)
        stream.on_headers(headers)
        self.on_request(stream)
        return stream

    def new_stream(self, stream_id: int) -> Stream:
        self.highest_stream = stream_id
        stream = Stream(
            self,
            stream_id,
            self._limits.message_bytes,
            send_window=self._peer_stream_window,
            receive_window=self._limits.window_bytes,
        )
        self.streams[stream_id] = stream
        return stream

    def _on_reset(self, stream_id: int, _flags: int, payload: bytes) -> None:
        code = frames.number_in(payload, "RST_STREAM")
        if stream_id == 0 or stream_id > self.highest_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM of stream {stream_id}, which is not open")
        stream = self.streams.get(stream_id)
        if stream is None or not stream.is_answered:  # cancels of calls that are being served may be many
            self._control.use()
        if stream:
            del self.streams[stream_id]
            stream.on_break(StreamBroken(f"RST_STREAM with error code {code}", code))

    def _on_window_update(self, stream_id: int, _flags: int, payload: bytes) -> None:
        increment = frames.number_in(payload, "WINDOW_UPDATE") & frames.STREAM_BITS
        stream = self.streams.get(stream_id)
        window = stream.send_window if stream else self.send_window
        if not increment or window + increment > frames.LARGEST_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {increment}")
        if stream:
            stream.send_window += increment
            stream.send_more()
        elif stream_id == 0:
            self.send_window += increment
            self._send_more()

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._control.use()
        if stream_id or (flags & frames.ACK and payload):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream, or an acknowledgement with values")
        if flags & frames.ACK:
            return
        for setting, value in frames.settings_in(payload):
            if setting == Setting.INITIAL_WINDOW_SIZE:
                self._set_stream_window(value)
            elif setting == Setting.MAX_FRAME_SIZE:
                if not frames.INITIAL_FRAME_BYTES <= value <= frames.LARGEST_FRAME_BYTES:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE of {value}")
                self.send_frame_bytes = min(value, FRAME_BYTES)
            elif setting == Setting.HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, self._encoder.header_table_size)
        self._unsent.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._send_more()

    def _set_stream_window(self, size: int) -> None:
        if size > frames.LARGEST_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE of {size}")
        change, self._peer_stream_window = size - self._peer_stream_window, size
        for stream in self.streams.values():
            stream.send_window += change

    def _on_ping(self, _stream_id: int, flags: int, payload: bytes) -> None:
        if flags & frames.ACK or not self._has_sent_message:  # clients measure the bandwidth of messages by pings
            self._control.use()
        self._has_sent_message = False
        if len(payload) != frames.PING_BYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"PING with {len(payload)} bytes")
        if not (flags & frames.ACK or self.is_congested):  # a peer that does not read gets no answers
            self._unsent.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_go_away(self, _stream_id: int, _flags: int, payload: bytes) -> None:
        code = int.from_bytes(payload[4:8], "big")
        if code != ErrorCode.NO_ERROR:  # else the streams that are open go on
            self.close(f"the peer closed the connection: GOAWAY with error code {code}")

    def _on_priority(self, _stream_id: int, _flags: int, _payload: bytes) -> None:
        self._control.use()

    def _on_push(self, _stream_id: int, _flags: int, _payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE, which is turned off")

    def _send_more(self) -> None:
        for stream in list(self.streams.values()):
            stream.send_more()

    def _end(self, reason: str) -> None:
        if self.lost:
            return
        self.lost = reason
        for stream in list(self.streams.values()):
            stream.on_break(StreamBroken(reason))
        self.streams.clear()
        self.on_closed()


_HANDLERS: dict[int, Callable[[Connection, int, int, bytes], None]] = {
    frames.HEADERS: Connection._on_headers,  # noqa: SLF001  # of this class
    frames.PRIORITY: Connection._on_priority,  # noqa: SLF001
    frames.RST_STREAM: Connection._on_reset,  # noqa: SLF001
    frames.SETTINGS: Connection._on_settings,  # noqa: SLF001
    frames.PUSH_PROMISE: Connection._on_push,  # noqa: SLF001
    frames.PING: Connection._on_ping,  # noqa: SLF001
    frames.GOAWAY: Connection._on_go_away,  # noqa: SLF001
    frames.WINDOW_UPDATE: Connection._on_window_update,  # noqa: SLF001
    frames.CONTINUATION: Connection._on_continuation,  # noqa: SLF001
}
