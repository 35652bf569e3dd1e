"""How messages lie in the pipe between the worker's two processes: a length, four bytes big-endian, then a pickle."""

import pickle
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
