"""Length-prefixed messages of gRPC: one byte that is 1 for a compressed message, four bytes of length, the message."""

from collections.abc import Iterator

from penstock.chassis.errors import InvalidArgument, Overloaded, Unimplemented
from penstock.chassis.http2.frames import PREFIX_BYTES


class MessageTooLarge(Overloaded):
    """The prefix of a message announces more bytes than the receiver accepts."""

    default_reason = "MESSAGE_TOO_LARGE"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the message has {size} bytes; allowed: at most {limit}")


def prefixed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


class MessageReader:
    """Splits the bytes of a stream into messages."""

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes of one message
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a message that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that `data` completes.

        Raises MessageTooLarge before the message is received, and Unimplemented for a compressed message.
        """
        if not self._buffer and len(data) >= PREFIX_BYTES and len(data) == PREFIX_BYTES + self._size_in(data):
            yield data[PREFIX_BYTES:]  # the usual case: one whole message
            return
        self._buffer += data
        while len(self._buffer) >= PREFIX_BYTES and len(self._buffer) >= (
            end := PREFIX_BYTES + self._size_in(self._buffer)
        ):
            message = bytes(memoryview(self._buffer)[PREFIX_BYTES:end])
            del self._buffer[:end]
            yield message

    def end(self) -> None:
        """Raise InvalidArgument if the stream ended within a message."""
        if self._buffer:
            raise InvalidArgument("the stream ended within a message", reason="MESSAGE_MALFORMED")

    def _size_in(self, data: bytes | bytearray) -> int:
        if data[0]:
            raise Unimplemented("compressed messages are not supported; send messages without compression")
        size = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if size > self._limit:
            raise MessageTooLarge(size, self._limit)
        return size
