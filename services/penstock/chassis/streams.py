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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from penstock.chassis.errors import FailedPrecondition
from penstock.chassis.stream_end import StreamEnd, counters
from penstock.v1.stream_pb2 import End, Hello

log = structlog.get_logger()

PROTOCOL = 1
HELLO_TIMEOUT = 5.0  # s; a cold process may take that long to its first answer
OUTBOX_FRAMES = 8_192
BACKOFF = (0.05, 0.25)  # s; first and longest wait before reconnecting, drawn from the upper half
RECONNECTED = 0.5  # s after which every link has tried a peer that is back, whatever its own waits and its channel's

Out = TypeVar("Out", bound=Message)
In = TypeVar("In", bound=Message)


def check_hello(frame: Any) -> Hello:
    """Return the hello in a stream's first frame; raises FailedPrecondition when it is none we can speak with."""
    if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "hello":
        raise FailedPrecondition("the first frame of a stream must be `hello`", reason="HELLO_MISSING")
    hello: Hello = frame.hello
    if hello.protocol != PROTOCOL:
        text = f"this process speaks frame protocol {PROTOCOL}, the peer {hello.protocol}; upgrade the older one"
        raise FailedPrecondition(text, reason="PROTOCOL_UNSUPPORTED")
    return hello


class Peer(StreamEnd[Out, In]):
    """The server end of one stream, for one handler: iterate it for frames, `send` from anywhere on the loop."""

    def __init__(self, context: Any, out: Callable[..., Out], hello: Hello, capacity: int) -> None:
        super().__init__(out, hello, capacity)
        self._context = context

    async def __aiter__(self) -> AsyncIterator[In]:
        """Yield frames until the peer ends or is cut off; silence and overflow interrupt the caller's block."""
        while not self.ended:
            try:
                frame = await self._context.read()
            except grpc.aio.UsageError:
                raise
            except grpc.aio.BaseError:  # the server was stopped between two frames
                return
            if frame is grpc.aio.EOF:
                return
            for each in self.frames_in(frame):
                if not self.ended:
                    yield each


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
    try:
        async with asyncio.timeout(HELLO_TIMEOUT):
            peer.hello = check_hello(await context.read())
    except TimeoutError:
        text = f"no `hello` came within {HELLO_TIMEOUT:g} s; send it first, and the rest after ours"
        raise FailedPrecondition(text, reason="HELLO_MISSING") from None
    counters.open += 1
    # Not a TaskGroup: it would wrap what the caller's block raises into an ExceptionGroup.
    loops = [asyncio.create_task(peer.write(context.write)), asyncio.create_task(peer.tick())]
    try:
        with suppress(TimeoutError):
            async with peer.limit:
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
        is_quiet: bool = False,
    ) -> None:
        """`is_quiet`: says nothing in the log, for a library in somebody else's process."""
        self.name = name
        self._call = call
        self._out = out
        self._hello = hello
        self._on_frame = on_frame
        self._on_up = on_up
        self._on_down = on_down
        self._capacity = capacity
        self._log = _silence if is_quiet else log.info
        self._end: StreamEnd[Out, In] | None = None
        self._is_left = False

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

    def leave(self, reason: str) -> None:
        """End for good: nothing more is sent, and `run` returns once the peer has closed the stream."""
        self._is_left = True
        if self._end:
            self._end.say_end(reason)

    async def flush(self) -> None:
        if self._end:
            await self._end.flush()

    async def run(self) -> None:
        """Stay connected until cancelled, or until it was left."""
        wait = BACKOFF[0]
        while not self._is_left:
            was_up = await self.run_once()
            wait = BACKOFF[0] if was_up else min(2 * wait, BACKOFF[1])
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311  # spreads reconnects, guards nothing

    async def run_once(self) -> bool:
        """Run one stream to its end; True when it was ever greeted."""
        end = StreamEnd[Out, In](self._out, self._hello, self._capacity)
        call = self._call()
        loops = [asyncio.create_task(end.write(call.write))]
        try:
            async with end.limit:
                async with asyncio.timeout(HELLO_TIMEOUT):
                    end.hello = check_hello(await call.read())
                if not self._is_left:
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

    async def _read(self, call: Any, end: StreamEnd[Out, In]) -> None:
        while not end.ended:
            frame = await call.read()
            if frame is grpc.aio.EOF:
                return
            for each in end.frames_in(frame):
                self._on_frame(each)

    def _up(self, end: StreamEnd[Out, In]) -> None:
        counters.open += 1
        self._end = end
        self._log("link_up", link=self.name, peer=end.hello.instance_id)
        if self._on_up:
            self._on_up(end.hello)

    def _down(self, end: StreamEnd[Out, In]) -> None:
        end.note_closed("ended" if end.ended or end.has_said_end else "cut")
        if self._end is not end:
            return
        counters.open -= 1
        self._end = None
        self._log("link_down", link=self.name, peer=end.hello.instance_id, because=end.closed_because)
        if self._on_down:
            self._on_down(end.closed_because)


def _silence(_event: str, **_facts: object) -> None: ...


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
