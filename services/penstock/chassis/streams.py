"""Long-lived bidirectional streams between processes: one stream carries many requests.

Every stream is one frame message per direction with a oneof `frame` that has `hello` (first), `heartbeat` (sent as
data, since transport pings do not notice a frozen peer) and `end` (on purpose; a stream that closes without it was
cut). `Link` is the client end and reconnects for ever; `accepted` gives a handler the server end as a `Peer`.

Sending never waits: a frame goes into a bounded outbox, and a full outbox means that the peer does not read, so its
stream is closed. Silence is counted in ticks of our own loop: a loop of ours that stalled has counted no ticks, so
being slow ourselves never makes a live peer look dead.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from penstock.chassis.errors import FailedPrecondition
from penstock.v1.stream_pb2 import End, Heartbeat, Hello

log = structlog.get_logger()

PROTOCOL = 1
TICK = 0.4  # s; a heartbeat is due in a tick in which nothing else was sent
SILENT_TICKS = 4  # dead after 1.6 to 2.0 s without a frame
HELLO_TIMEOUT = 5.0  # s; a cold process may take that long to its first answer
FLUSH_TIMEOUT = 1.0  # s; for what is still in the outbox when a stream is closed on purpose
OUTBOX_FRAMES = 8_192
BACKOFF = (0.05, 1.0)  # s; first and longest wait before reconnecting, drawn from the upper half

Out = TypeVar("Out", bound=Message)
In = TypeVar("In", bound=Message)


@dataclass
class StreamCounters:
    """How many streams this process holds, and what it did not understand on them."""

    open: int = 0
    unknown_frames: int = 0


counters = StreamCounters()


@dataclass
class Outbox(Generic[Out]):
    """Frames waiting to be written, in order. Full: `put` says no, and the stream is to be closed."""

    capacity: int
    frames: deque[Out] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    written: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, frame: Out) -> bool:
        if len(self.frames) >= self.capacity:
            return False
        self.frames.append(frame)
        self.ready.set()
        self.written.clear()
        return True

    async def write_all(self, write: Callable[[Out], Awaitable[object]]) -> None:
        """Write frames as they come, until cancelled or until `write` fails."""
        while True:
            await self.ready.wait()
            while self.frames:
                await write(self.frames.popleft())
            self.ready.clear()
            self.written.set()


class _StreamEnd(Generic[Out, In]):
    """What both ends of a stream do alike: outbox, heartbeat, silence, closing for a reason."""

    def __init__(self, out: Callable[..., Out], hello: Hello, capacity: int) -> None:
        self._out = out
        self._outbox = Outbox[Out](capacity)
        self._outbox.put(out(hello=hello))
        self._limit = asyncio.timeout(None)
        self._heard = True
        self._sent = 0
        self.hello = Hello()
        self.ended = False
        self.closed_because = ""

    def send(self, frame: Out) -> bool:
        """Queue `frame`; False when the stream is closed, or was just closed because the peer does not read."""
        if self.closed_because:
            return False
        self._sent += 1
        if not self._outbox.put(frame):
            self.close("peer does not read")
            return False
        return True

    def close(self, reason: str) -> None:
        """Interrupt the reading side, from wherever this is called."""
        if not self.closed_because:
            self.closed_because = reason
            with suppress(RuntimeError):  # the reader has left already
                self._limit.reschedule(asyncio.get_running_loop().time())

    def understand(self, frame: Any) -> bool:
        """Note that the peer lives; True when the frame is for the caller."""
        self._heard = True
        kind = frame.WhichOneof("frame")
        if kind is None:
            counters.unknown_frames += 1
        if kind == "end":
            self.ended = True
        return kind not in (None, "heartbeat", "hello")

    async def write(self, write: Callable[[Out], Awaitable[object]]) -> None:
        """Write the outbox; a failing write closes the stream (the reader learns the status)."""
        try:
            await self._outbox.write_all(write)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            self.close(f"write failed: {type(error).__name__}")

    async def tick(self) -> None:
        silent, sent = 0, 0
        while silent < SILENT_TICKS:
            await asyncio.sleep(TICK)
            silent = 0 if self._heard else silent + 1
            self._heard = False
            if sent == self._sent:
                self.send(self._out(heartbeat=Heartbeat()))
            sent = self._sent
        self.close("peer is silent")

    async def flush(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT):
                await self._outbox.written.wait()


def check_hello(frame: Any) -> Hello:
    """Return the hello in a stream's first frame; raises FailedPrecondition when it is none we can speak with."""
    if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "hello":
        raise FailedPrecondition("the first frame of a stream must be `hello`", reason="HELLO_MISSING")
    hello: Hello = frame.hello
    if hello.protocol != PROTOCOL:
        text = f"this process speaks frame protocol {PROTOCOL}, the peer {hello.protocol}; upgrade the older one"
        raise FailedPrecondition(text, reason="PROTOCOL_UNSUPPORTED")
    return hello


class Peer(_StreamEnd[Out, In]):
    """The server end of one stream, for one handler: iterate it for frames, `send` from anywhere on the loop."""

    def __init__(self, context: Any, out: Callable[..., Out], hello: Hello, capacity: int) -> None:
        super().__init__(out, hello, capacity)
        self._context = context

    async def __aiter__(self) -> AsyncIterator[In]:
        """Yield frames until the peer ends or is cut off; silence and overflow interrupt the caller's block."""
        while not self.ended:
            frame = await self._context.read()
            if frame is grpc.aio.EOF:
                return
            if self.understand(frame) and not self.ended:
                yield frame


@asynccontextmanager
async def accepted(
    context: Any, out: Callable[..., Out], hello: Hello, *, capacity: int = OUTBOX_FRAMES
) -> AsyncIterator[Peer[Out, Any]]:
    """Give a bidi handler its end of the stream, greeted both ways.

    The block is left normally when the peer ends, is cut off, falls silent or does not read; `finally` is the place
    to give back. Raises FailedPrecondition when the first frame is not a hello of our protocol.
    """
    await context.send_initial_metadata(())  # at once, or a proxy counts early cancels as an attack
    peer = Peer[Out, Any](context, out, hello, capacity)
    async with asyncio.timeout(HELLO_TIMEOUT):
        peer.hello = check_hello(await context.read())
    counters.open += 1
    # Not a TaskGroup: it would wrap what the caller's block raises into an ExceptionGroup.
    loops = [asyncio.create_task(peer.write(context.write)), asyncio.create_task(peer.tick())]
    try:
        with suppress(TimeoutError):
            async with peer._limit:  # noqa: SLF001  # the two classes are one mechanism
                yield peer
                await peer.flush()
    finally:
        counters.open -= 1
        peer.closed_because = peer.closed_because or "handler left"
        await _cancel(loops)
        log.debug("stream_left", peer=peer.hello.instance_id, ended=peer.ended, because=peer.closed_because)


async def _cancel(loops: list[asyncio.Task[None]]) -> None:
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


class Link(Generic[Out, In]):
    """The client end: one stream to one address, kept connected for as long as `run` runs.

    Callbacks are plain calls on the loop: `on_up(hello)` once greeted, `on_frame(frame)` for each frame but hello,
    heartbeat and unknown ones (`end` is passed), `on_down(reason)` once for each `on_up`.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[], Any],
        out: Callable[..., Out],
        hello: Hello,
        *,
        on_frame: Callable[[In], None],
        on_up: Callable[[Hello], None] | None = None,
        on_down: Callable[[str], None] | None = None,
        capacity: int = OUTBOX_FRAMES,
    ) -> None:
        self.name = name
        self._call = call
        self._out = out
        self._hello = hello
        self._on_frame = on_frame
        self._on_up = on_up
        self._on_down = on_down
        self._capacity = capacity
        self._end: _StreamEnd[Out, In] | None = None

    def __repr__(self) -> str:
        return f"<Link {self.name} {'up' if self.is_up else 'down'}>"

    @property
    def is_up(self) -> bool:
        return self._end is not None and not self._end.closed_because

    @property
    def peer(self) -> Hello | None:
        return self._end.hello if self._end else None

    def send(self, frame: Out) -> bool:
        """Queue `frame`; False when the link is not up, in which case `on_down` has come or is about to."""
        return self._end is not None and self._end.send(frame)

    def end(self, reason: str) -> None:
        """Say that nothing more will be sent; the peer closes the stream when it is done."""
        self.send(self._out(end=End(reason=reason)))

    async def flush(self) -> None:
        if self._end:
            await self._end.flush()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        wait = BACKOFF[0]
        while True:
            was_up = await self._connect_once()
            wait = BACKOFF[0] if was_up else min(2 * wait, BACKOFF[1])
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311  # spreads reconnects, guards nothing

    async def _connect_once(self) -> bool:
        """Run one stream to its end; True when it was ever greeted."""
        end = _StreamEnd[Out, In](self._out, self._hello, self._capacity)
        call = self._call()
        loops = [asyncio.create_task(end.write(call.write))]
        try:
            async with end._limit:  # noqa: SLF001  # the two classes are one mechanism
                async with asyncio.timeout(HELLO_TIMEOUT):
                    end.hello = check_hello(await call.read())
                loops.append(asyncio.create_task(end.tick()))
                self._up(end)
                await self._read(call, end)
        except TimeoutError:
            end.closed_because = end.closed_because or "no hello"
        except (grpc.RpcError, FailedPrecondition, asyncio.InvalidStateError) as error:
            end.closed_because = end.closed_because or _reason(error)
        except Exception:
            log.exception("frame_failed", link=self.name)  # the next stream starts from a clean state
            end.closed_because = "frame failed"
        finally:
            self._down(end)
            call.cancel()
            await _cancel(loops)
        return bool(end.hello.instance_id)

    async def _read(self, call: Any, end: _StreamEnd[Out, In]) -> None:
        while not end.ended:
            frame = await call.read()
            if frame is grpc.aio.EOF:
                return
            if end.understand(frame):
                self._on_frame(frame)

    def _up(self, end: _StreamEnd[Out, In]) -> None:
        counters.open += 1
        self._end = end
        log.info("link_up", link=self.name, peer=end.hello.instance_id)
        if self._on_up:
            self._on_up(end.hello)

    def _down(self, end: _StreamEnd[Out, In]) -> None:
        end.closed_because = end.closed_because or ("ended" if end.ended else "cut")
        if self._end is not end:
            log.debug("link_refused", link=self.name, because=end.closed_because)
            return
        counters.open -= 1
        self._end = None
        log.info("link_down", link=self.name, peer=end.hello.instance_id, because=end.closed_because)
        if self._on_down:
            self._on_down(end.closed_because)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
