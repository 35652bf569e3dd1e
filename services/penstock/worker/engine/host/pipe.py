"""The engine's end of the pipe to the worker process, and the encoding of messages. Sending never waits.

A busy or suspended worker process must not delay a step. Bytes that the socket does not accept are kept in order and
sent with a later call. Beyond `MAX_UNSENT_BYTES` the pipe is full, and the engine makes no step until the worker has
read some. It still receives cancels meanwhile, and every token is delivered once and in order.
"""

import pickle
import select
import socket
from struct import Struct

_LENGTH = Struct("!I")


def encode_message(message: object) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class MessageDecoder:
    """Restores whole messages from a stream of bytes, in order."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes | memoryview) -> list[object]:
        self._unread += data
        messages = []
        while (body := self._next()) is not None:
            messages.append(pickle.loads(body))
        return messages

    def _next(self) -> bytes | None:
        if len(self._unread) < _LENGTH.size:
            return None
        end = _LENGTH.size + int(_LENGTH.unpack_from(self._unread)[0])
        if len(self._unread) < end:
            return None
        body = bytes(self._unread[_LENGTH.size : end])
        del self._unread[:end]
        return body


MAX_UNSENT_BYTES = 4 << 20  # about 800 steps of 256 sequences
_READ_BYTES = 1 << 16  # bytes per read


class HostGone(Exception):
    """The worker process has closed its end or died."""


class HostPipe:
    """Owns the socket. Every call may raise HostGone."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        end.set_inheritable(False)  # a process that the engine starts must not keep the pipe open after its death
        self._end = end
        self._unsent = bytearray()
        self._decoder = MessageDecoder()
        self._read_buffer = bytearray(_READ_BYTES)

    @property
    def is_full(self) -> bool:
        return len(self._unsent) > MAX_UNSENT_BYTES

    def send(self, message: object) -> None:
        self._unsent += encode_message(message)
        self._send_unsent()

    def receive(self) -> list[object]:
        """Return all messages received since the last call, and send unsent bytes."""
        messages: list[object] = []
        try:
            self._send_unsent()
            while data := self._read():
                messages += self._decoder.feed(data)
        except HostGone:
            if not messages:
                raise
        return messages

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the worker sends a message or the socket accepts unsent bytes."""
        select.select([self._end], [self._end] if self._unsent else [], [], seconds)

    def flush(self, seconds: float) -> None:
        """Send all unsent bytes; give up after a wait of `seconds` in which the worker reads none."""
        while self._unsent:
            before = len(self._unsent)
            select.select([], [self._end], [], seconds)
            self._send_unsent()
            if len(self._unsent) == before:
                return

    def close(self) -> None:
        self._end.close()

    def _send_unsent(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._end.send(self._unsent)]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError) as error:
            raise HostGone from error

    def _read(self) -> memoryview | None:
        """Read once; None if there is nothing to read now."""
        try:
            count = self._end.recv_into(self._read_buffer)
        except BlockingIOError:
            return None
        except ConnectionResetError as error:
            raise HostGone from error
        if not count:
            raise HostGone
        return memoryview(self._read_buffer)[:count]
