"""The code that both ends of a stream share: outbox, heartbeats, detection of silence, and closing with a reason."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from penstock.chassis.errors import FailedPrecondition, InvalidArgument
from penstock.chassis.streams.outbox import Outbox
from penstock.chassis.streams.protocol import agreed_version
from penstock.chassis.streams.ticks import Ticks
from penstock.mesh.limits.bounds import FRAMES
from penstock.mesh.limits.compiler import Check, check_of, frame_checks
from penstock.mesh.limits.violations import violation_of
from penstock.v1.stream_pb2 import End, Heartbeat, Hello

MAX_SILENT_TICKS = 4  # a peer is dead after 1.52 to 1.9 s without a frame: within 2 s even if five timers are late
FLUSH_TIMEOUT_S = 1.0  # to write the rest of the outbox when a stream is closed on purpose

Out = TypeVar("Out", bound=Message)
In = TypeVar("In", bound=Message)


@dataclass
class StreamCounters:
    """Counts of this process: open streams, and unknown, wrong and malformed frames received."""

    open: int = 0
    unknown_frames: int = 0
    out_of_range_frames: int = 0
    malformed_messages: int = 0  # of unary calls, too


counters = StreamCounters()


class FrameOutOfRange(InvalidArgument):
    """A frame has a field out of the range that its receiver accepts. It ends the stream of its sender."""

    default_reason = "FRAME_OUT_OF_RANGE"


def check_message(message: Message, check: Check | None) -> None:
    """Raise FrameOutOfRange, which names the field, its value and its range, if `check` finds one."""
    if check and check(message) and (found := violation_of(message)):
        counters.out_of_range_frames += 1
        raise FrameOutOfRange(str(found), field=found.field)


class StreamEndpoint(Generic[Out, In]):
    """One end of one stream, from its start until it is closed with a reason."""

    def __init__(self, frame_type: Callable[..., Out], hello: Hello, capacity: int) -> None:
        self._frame_type = frame_type
        self._own_hello = hello
        self._outbox = Outbox[Out](capacity)
        self._outbox.put(_hello_frame(frame_type, hello))
        self.timeout = asyncio.timeout(None)
        self._heartbeat = frame_type(heartbeat=Heartbeat())
        self.ticks = Ticks(self)
        self._has_received = True
        self._silent_ticks = 0
        self._has_sent = True  # since the last tick
        self._checks: Mapping[str, Check] = {}  # of the peer's frames, by kind
        self.hello = Hello()  # of the peer; empty before it has arrived
        self.protocol = 0  # version that both peers use; 0 before the hello
        self.has_peer_ended = False
        self.end_reason = ""  # of the peer's `end`
        self.has_sent_end = False
        self.close_reason = ""

    def accept_hello(self, frame: Any, check: Callable[[Hello], None] | None = None) -> None:
        """Apply the first frame.

        Raises FailedPrecondition if it is no hello, or of protocol versions that we lack, FrameOutOfRange, and the
        error of `check`.
        """
        if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "hello":
            raise FailedPrecondition("the first frame of a stream must be `hello`", reason="HELLO_MISSING")
        check_message(frame.hello, check_of(frame.hello.DESCRIPTOR))
        self._checks = frame_checks(frame.DESCRIPTOR)
        if check:
            check(frame.hello)
        self.protocol = agreed_version(self._own_hello, frame.hello)
        self.hello = frame.hello

    def send(self, frame: Out, *, max_delay_s: float = 0.0) -> bool:
        """Queue `frame`. Return False if the stream is closed or our `end` was sent, or if the outbox is full, which
        closes the stream.

        A frame that its receiver does not wait for has a `max_delay_s`, far below `TICK_S`: it travels in the message
        of the next frame, and causes a message of its own only after that time.
        """
        if self.close_reason or self.has_sent_end:
            return False
        self._has_sent = True
        if not self._outbox.put(frame, max_delay_s):
            self.close("peer does not read")
            return False
        return True

    def send_end(self, reason: str) -> None:
        """Send `end` as the last frame: the peer then closes the stream, and a later write would fail."""
        self.send(self._frame_type(end=End(reason=reason)))
        self.has_sent_end = True

    def close(self, reason: str) -> None:
        """Interrupt the reader; may be called from anywhere on the loop."""
        if not self.close_reason:
            self.mark_closed(reason)
            with suppress(RuntimeError):  # the reader has already left its timeout block
                self.timeout.reschedule(asyncio.get_running_loop().time())

    def mark_closed(self, reason: str) -> None:
        self.close_reason = self.close_reason or reason
        self._outbox.written.set()  # the rest will never be written, so `flush` must not wait for it

    def data_frames(self, message: Any) -> Iterator[In]:
        """Yield the frames of a message, without heartbeats, hellos and unknown ones. Raises FrameOutOfRange."""
        for frame in _bundled(message) or (message,):
            if self.on_frame(frame):
                yield frame

    def on_frame(self, frame: Any) -> bool:
        """Record that the peer is alive, and check the fields of the frame against their ranges.

        Return True if the frame is for the caller. Raises FrameOutOfRange.
        """
        self._has_received = True
        kind = frame.WhichOneof("frame")
        if kind is None:
            counters.unknown_frames += 1
        elif (check := self._checks.get(kind)) and check(frame):
            check_message(getattr(frame, kind), check_of(getattr(frame, kind).DESCRIPTOR))
        if kind == "end":
            self.has_peer_ended, self.end_reason = True, frame.end.reason
        return kind not in (None, "heartbeat", "hello")

    async def write(self, write: Callable[[Out], Awaitable[object]]) -> None:
        """Write the outbox. A failed write closes the stream; the reader receives the status."""
        try:
            await self._outbox.write_all(write, can_bundle=lambda: self.hello.bundles)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            self.close(f"write failed: {type(error).__name__}")

    def on_tick(self) -> None:
        """Count a tick without frames of the peer, and send a heartbeat if no other frame was sent since the last."""
        self._silent_ticks = 0 if self._has_received else self._silent_ticks + 1
        if self._silent_ticks >= MAX_SILENT_TICKS:
            self.close("peer is silent")
            return
        if not self._has_sent:
            self.send(self._heartbeat)
        self._has_received = self._has_sent = False

    def unwritten_bytes(self) -> int:
        """Return the size of the frames that wait to be written, without those of the message that is being written."""
        return self._outbox.unwritten_bytes()

    def expedite(self) -> None:
        """Write delayed frames now."""
        self._outbox.expedite()

    async def flush(self) -> None:
        self.expedite()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._outbox.written.wait()


def _bundled(message: Any) -> Sequence[Any]:
    """Return the frames of a bundle; empty if the message is one frame."""
    frames: Sequence[Any] = getattr(message, "more", ())
    if len(frames) > FRAMES:
        counters.out_of_range_frames += 1
        text = f"{message.DESCRIPTOR.name}.more has {len(frames)} frames; allowed: at most {FRAMES}"
        raise FrameOutOfRange(text, field="more")
    return frames


def _hello_frame(frame_type: Callable[..., Out], hello: Hello) -> Out:
    """Return the first frame. Its hello announces support of bundles if the frame type has the field `more`."""
    greeting = frame_type(hello=hello)
    greeting.hello.bundles = "more" in greeting.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]  # a frame
    return greeting
