"""Length-prefixed messages of gRPC: one byte that is 1 for a compressed message, four bytes of length, the message."""

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from penstock.chassis.errors import InvalidArgument, Overloaded, Unimplemented
from penstock.chassis.http2.frames import PREFIX_BYTES


class MessageTooLarge(Overloaded):
    """The prefix of a message announces more bytes than the receiver accepts."""

    default_reason = "MESSAGE_TOO_LARGE"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the message has {size} bytes; allowed: at most {limit}")


def prefixed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


# The window of zlib, which tells the format, by value of `grpc-encoding`.
_WINDOW_BITS: Final[Mapping[bytes, int]] = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
ACCEPTED_ENCODINGS: Final = ",".join((*(each.decode() for each in _WINDOW_BITS), "identity"))


class CompressedMessage(bytes):
    """A message as it was sent. It is decompressed when it is read, because a caller may have to be known before."""


def decompressed(message: bytes, encoding: bytes, limit: int) -> bytes:
    """Return a message without the compression that `grpc-encoding` names.

    Raises MessageTooLarge once it has more than `limit` bytes, InvalidArgument if it is malformed, and Unimplemented
    for an encoding that is not supported.
    """
    if (window_bits := _WINDOW_BITS.get(encoding)) is None:
        name = encoding.decode("latin-1")[:64]
        error = Unimplemented(f"messages compressed by {name!r} are not supported; use one of {ACCEPTED_ENCODINGS}")
        error.extra_metadata = (("grpc-accept-encoding", ACCEPTED_ENCODINGS),)
        raise error
    inflater = zlib.decompressobj(window_bits)
    try:
        plain = inflater.decompress(message, limit + 1)
    except zlib.error:
        plain = b""
    if len(plain) > limit:
        raise MessageTooLarge(len(plain), limit)
    if not inflater.eof:
        raise InvalidArgument("a compressed message cannot be decompressed", reason="MESSAGE_MALFORMED")
    return plain


class MessageReader:
    """Splits the bytes of a stream into messages. Those that are compressed are of the type CompressedMessage."""

    __slots__ = ("_buffer", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes of one message
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a message that is not complete."""
        return len(self._buffer)

    @property
    def missing_bytes(self) -> int:
        """Bytes that complete the message whose prefix has arrived; 0 if none has."""
        if len(self._buffer) < PREFIX_BYTES:
            return 0
        return PREFIX_BYTES + self._size_in(self._buffer) - len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that `data` completes.

        Raises MessageTooLarge before the message is received.
        """
        if not self._buffer and len(data) >= PREFIX_BYTES and len(data) == PREFIX_BYTES + self._size_in(data):
            message = data[PREFIX_BYTES:]  # the usual case: one whole message
            yield CompressedMessage(message) if data[0] else message
            return
        self._buffer += data
        while len(self._buffer) >= PREFIX_BYTES and len(self._buffer) >= (
            end := PREFIX_BYTES + self._size_in(self._buffer)
        ):
            of_type = CompressedMessage if self._buffer[0] else bytes
            message = of_type(memoryview(self._buffer)[PREFIX_BYTES:end])
            del self._buffer[:end]
            yield message

    def end(self) -> None:
        """Raise InvalidArgument if the stream ended within a message."""
        if self._buffer:
            raise InvalidArgument("the stream ended within a message", reason="MESSAGE_MALFORMED")

    def _size_in(self, data: bytes | bytearray) -> int:
        size = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if size > self._limit:
            raise MessageTooLarge(size, self._limit)
        return size
