"""The engine's end of the pipe to its front: sending never waits.

A front that is busy, or stopped for a while, must not hold up a step. What the socket does not take stays here, whole
and in order, and goes with a later call. Beyond `UNSENT_LIMIT` the pipe is full, and the engine takes no step until the
front has read some: it hears cancels all the while, and every token made is still handed over, once and in order.
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
    """Gives whole messages back, in order, however the bytes were cut on their way."""

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


MAX_UNSENT_BYTES = 4 << 20  # bytes; some 800 steps of 256 sequences, so a front that is this late is as good as dead
_READ_BYTES = 1 << 16  # bytes read at a time


class HostGone(Exception):
    """The front has closed its end, or died. Nobody waits for what was to come."""


class HostPipe:
    """Takes the socket over. Every call may raise FrontGone."""

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
        """What the front has said since, to its last word; sends on what was left unsent."""
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
        """Until the front says something, or takes more of what is unsent."""
        select.select([self._end], [self._end] if self._unsent else [], [], seconds)

    def flush(self, seconds: float) -> None:
        """Send all, or as much as goes in one wait after the other of `seconds`: the last words of an engine."""
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
        """One piece of what there is to read; None when there is nothing now."""
        try:
            count = self._end.recv_into(self._read_buffer)
        except BlockingIOError:
            return None
        except ConnectionResetError as error:
            raise HostGone from error
        if not count:
            raise HostGone
        return memoryview(self._read_buffer)[:count]
