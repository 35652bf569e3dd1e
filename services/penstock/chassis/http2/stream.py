"""One stream of a connection: messages that were received, and messages that wait to be sent."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.chassis.errors import PenstockError
from penstock.chassis.http2.messages import CompressedMessage, MessageReader, decompressed, prefixed

Header = tuple[bytes, bytes]

EXTENSIONS_PER_WINDOW = 4  # of the peer's window, so that most messages cause no frame


class StreamBroken(Exception):
    """The peer has reset the stream, or its connection is lost."""

    def __init__(self, reason: str, error_code: int | None = None) -> None:
        super().__init__(reason)
        self.error_code = error_code  # of RST_STREAM; None if the connection is lost

    def again(self) -> "StreamBroken":
        """Return an equal error to raise. An error that was raised refers to the stream that keeps it."""
        return StreamBroken(str(self), self.error_code)


class Sender(Protocol):
    """The connection of a stream."""

    is_congested: bool  # the socket takes no more bytes now

    def send_message(self, stream: "Stream", message: bytes) -> bool:
        """Send a whole message in one frame. Return False, and send nothing, if the windows do not allow it."""

    def send_data(self, stream: "Stream", data: memoryview) -> int:
        """Send as much of `data` as one frame and the windows allow. Return its bytes."""

    def extend_window(self, stream: "Stream", size: int) -> None:
        """Let the peer send `size` more bytes on the stream."""

    def flush(self) -> None:
        """Give the socket what was written."""


class Stream:
    """The state of one stream. Its methods never wait, except `read` and `write`."""

    __slots__ = (
        "_connection",
        "_final",
        "_message_bytes",
        "_messages",
        "_reader",
        "_unread_bytes",
        "_unsent",
        "_waiter",
        "_window_bytes",
        "_write_waiter",
        "broken",
        "fault",
        "headers",
        "id",
        "is_answered",
        "is_ended",
        "on_broken",
        "receive_window",
        "send_window",
        "trailers",
    )

    def __init__(
        self, connection: Sender, stream_id: int, message_bytes: int, *, send_window: int, receive_window: int
    ) -> None:
        self.id = stream_id
        self.send_window = send_window  # bytes that the peer accepts
        self.receive_window = receive_window  # bytes that the peer may send
        self.headers: tuple[Header, ...] = ()  # of the peer; empty before they have arrived
        self.trailers: tuple[Header, ...] = ()
        self.is_ended = False  # the peer sends no more
        self.is_answered = False  # headers were sent
        self.broken: StreamBroken | None = None
        self.fault: PenstockError | None = None  # of the peer's messages; none is read after it
        self.on_broken: Callable[[], object] = do_nothing
        self._connection = connection
        self._reader = MessageReader(message_bytes)
        self._message_bytes = message_bytes
        self._window_bytes = receive_window
        self._messages: deque[bytes] = deque()
        self._unread_bytes = 0
        self._unsent: deque[memoryview] = deque()
        self._final: Callable[[], None] | None = None  # called once all is sent
        self._waiter: asyncio.Future[None] | None = None
        self._write_waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.id}, {self._unread_bytes} bytes unread>"

    # Reading.

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that are not read or not complete."""
        return self._unread_bytes + self._reader.pending_bytes

    @property
    def has_unread(self) -> bool:
        return bool(self._messages)

    async def read(self) -> bytes | None:
        """Return the next message; None at the end of the peer's messages.

        Raises StreamBroken, and the error of a message that is too large, incomplete or cannot be decompressed.
        """
        if self._messages:
            await asyncio.sleep(0)  # messages that wait must not hold the loop
        while not self._messages:
            if self.fault:
                raise self.fault
            if self.is_ended:
                return None
            if self.broken:
                raise self.broken.again()
            if self._extend_window():
                self._connection.flush()
            await self.wait()
        message = self._messages.popleft()
        self._unread_bytes -= len(message)
        if self._extend_window():
            self._connection.flush()
        if type(message) is CompressedMessage:
            return decompressed(message, dict(self.headers).get(b"grpc-encoding", b"identity"), self._message_bytes)
        return message

    async def wait(self) -> None:
        """Wait until something arrives or the stream ends."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def on_headers(self, headers: tuple[Header, ...]) -> None:
        if self.headers:
            self.trailers = headers
        else:
            self.headers = headers
        self._wake()

    def on_data(self, data: bytes, size: int) -> None:
        """Take the data of a frame that used `size` bytes of the window."""
        self.receive_window -= size
        if self.fault is None:
            try:
                for message in self._reader.feed(data):
                    self._messages.append(message)
                    self._unread_bytes += len(message)
            except PenstockError as fault:
                self.fault = fault
            if self._messages or self.fault:
                self._wake()
        if self._waiter:
            self._extend_window()

    def on_end(self) -> None:
        self.is_ended = True
        if self.fault is None:
            try:
                self._reader.end()
            except PenstockError as fault:
                self.fault = fault
        self._wake()

    def on_break(self, broken: StreamBroken) -> None:
        if self.broken is None:
            self.broken = broken
            self._unsent.clear()
            self._wake()
            self._wake_writer()
            self.on_broken()

    def _extend_window(self) -> bool:
        """Let the peer send the rest of the message that is waited for, and a window beyond what is read.

        Return False if that is not much more than it may send.
        """
        size = self._window_bytes - self._unread_bytes + self._reader.missing_bytes - self.receive_window
        if size * EXTENSIONS_PER_WINDOW < self._window_bytes or self.fault:
            return False
        self._connection.extend_window(self, size)
        return True

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    # Writing.

    async def write(self, message: bytes) -> None:
        """Send a message; return once it is within the peer's window and the connection takes more bytes.

        Raises StreamBroken.
        """
        if self.broken:
            raise self.broken.again()
        if self._unsent or not self._connection.send_message(self, message):
            self._unsent.append(memoryview(prefixed(message)))
            self.send_more()
        self._connection.flush()
        while (self._unsent or self._connection.is_congested) and not self.broken:
            self._write_waiter = asyncio.get_running_loop().create_future()
            try:
                await self._write_waiter
            finally:
                self._write_waiter = None
        if self.broken:
            raise self.broken.again()

    def end_with(self, final: Callable[[], None]) -> None:
        """Call `final`, which ends our side of the stream, once all messages are sent."""
        self._final = final
        self.send_more()

    def send_more(self) -> None:
        """Send what the windows and the connection allow now. The connection calls this when they allow more."""
        while self._unsent and not self._connection.is_congested:
            rest = self._unsent[0]
            size = self._connection.send_data(self, rest)
            if size == 0:
                return
            if size == len(rest):
                self._unsent.popleft()
            else:
                self._unsent[0] = rest[size:]
        if not self._unsent and self._final:
            final, self._final = self._final, None
            final()
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._write_waiter and not self._write_waiter.done():
            self._write_waiter.set_result(None)


def do_nothing() -> None: ...
