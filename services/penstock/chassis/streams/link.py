"""The two ends of a long-lived bidirectional stream, which carries many requests.

Each direction has one frame message with a oneof `frame`: `hello` (first), `heartbeat` (sent as data, because transport
pings do not detect a frozen peer), `end` (an intended end; without it the stream was cut) and the frames of the tier.
`Link` is the client end and reconnects for ever. `accept_stream` gives a handler the server end as a `Peer`.

Sending never waits. A frame enters a bounded outbox; a full outbox means that the peer does not read, and closes its
stream. Silence is counted in ticks of our own loop: a stalled loop counts no ticks, so that our own stall never makes a
live peer look dead.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from penstock.chassis.errors import FailedPrecondition, PenstockError, PermissionDenied, error_from_rpc
from penstock.chassis.security.identity import HelloMismatch, check_hello, peer_identity
from penstock.chassis.streams.endpoint import FrameOutOfRange, StreamEndpoint, counters
from penstock.v1.stream_pb2 import End, Hello

log = structlog.get_logger()

HELLO_TIMEOUT_S = 5.0  # a cold process may need as long for its first frame
MAX_OUTBOX_FRAMES = 8_192
RECONNECT_BACKOFF_S = (0.05, 0.25)  # first and longest wait before a reconnect; the upper half is random
MAX_RECONNECT_S = 0.5  # time in which every link has tried to reach a peer that is back

Out = TypeVar("Out", bound=Message)
In = TypeVar("In", bound=Message)


class Peer(StreamEndpoint[Out, In]):
    """The server end of one stream, for one handler: iterate it for frames; `send` works anywhere on the loop."""

    def __init__(self, context: Any, frame_type: Callable[..., Out], hello: Hello, capacity: int) -> None:
        super().__init__(frame_type, hello, capacity)
        self._context = context

    @property
    def instance_id(self) -> str:
        return self.hello.instance_id

    async def __aiter__(self) -> AsyncIterator[In]:
        """Yield frames until the peer ends the stream or is cut; silence and overflow interrupt the caller's block."""
        while not self.has_peer_ended:
            try:
                frame = await self._context.read()
            except grpc.aio.UsageError:
                raise
            except grpc.aio.BaseError:  # the server stopped between two frames
                return
            if frame is grpc.aio.EOF:
                return
            for each in self.data_frames(frame):
                if not self.has_peer_ended:
                    yield each


@asynccontextmanager
async def accept_stream(
    context: Any,
    frame_type: Callable[..., Out],
    hello: Hello,
    *,
    capacity: int = MAX_OUTBOX_FRAMES,
    tiers: Sequence[str] = (),
    may_be_relayed: bool = False,
) -> AsyncIterator[Peer[Out, Any]]:
    """Give a bidirectional handler its end of the stream, after hellos in both directions.

    With `tiers`, the peer must be a process of one of them, and its hello of the tier and instance of its certificate.
    Both are checked on connections with certificates. `may_be_relayed`: a proxy, which has checked the certificate of
    the peer, may carry the stream; the hello states only the tier of the peer then.

    The block ends normally when the peer ends the stream, is cut, is silent or does not read; `finally` is the place to
    release resources. Raises FailedPrecondition if the first frame is not a hello of a protocol version of ours,
    HelloMismatch, and FrameOutOfRange for a frame with a field out of its range.
    """
    await context.send_initial_metadata(())  # at once, because proxies count early cancels as an attack
    peer = Peer[Out, Any](context, frame_type, hello, capacity)
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            peer.accept_hello(await context.read())
    except TimeoutError:
        text = f"no `hello` was received within {HELLO_TIMEOUT_S:g} s; send it first, and other frames after ours"
        raise FailedPrecondition(text, reason="HELLO_MISSING") from None
    if tiers:
        _check_peer(context, peer.hello, tiers, may_be_relayed=may_be_relayed)
    counters.open += 1
    # Not a TaskGroup, which would wrap an exception of the caller's block into an ExceptionGroup.
    writing = asyncio.create_task(peer.write(context.write))
    peer.ticks.start()
    try:
        with suppress(TimeoutError):
            async with peer.timeout:
                yield peer
                await peer.flush()
    finally:
        counters.open -= 1
        peer.close_reason = peer.close_reason or "handler left"
        peer.ticks.stop()
        await _cancelled(writing)
        log.debug("stream_closed", peer=peer.hello.instance_id, ended=peer.has_peer_ended, because=peer.close_reason)


def _check_peer(context: Any, hello: Hello, tiers: Sequence[str], *, may_be_relayed: bool) -> None:
    """Raise HelloMismatch if the hello is of another process than the certificate, or this stream of other tiers."""
    identity = peer_identity(context)
    if identity is None:
        return
    if not (may_be_relayed and identity.tier == "envoy"):
        check_hello(hello, identity.tier, identity.instance_id)
    if hello.tier not in tiers:
        raise HelloMismatch(f"this stream is for {' and '.join(tiers)}, the hello is of tier {hello.tier[:64]!r}")


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Link(Generic[Out, In]):
    """The client end: one stream to one address, kept connected while `run` runs.

    Callbacks are plain calls on the loop: `on_up(hello)` after the hellos, `on_frame(frame)` for each frame except
    hello, heartbeat and unknown ones, and `on_down(reason)` once for each `on_up`. `on_rejected(error)` is called with
    the status of a peer that ended the stream before its hello.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[], Any],
        frame_type: Callable[..., Out],
        hello: Hello,
        *,
        on_frame: Callable[[In], None],
        on_up: Callable[[Hello], None] | None = None,
        on_down: Callable[[str], None] | None = None,
        on_rejected: Callable[[PenstockError], None] | None = None,
        capacity: int = MAX_OUTBOX_FRAMES,
        is_quiet: bool = False,
        check_hello: Callable[[Hello], None] | None = None,
    ) -> None:
        """`is_quiet` turns off logging, for a library in an application's process.

        `check_hello` raises PermissionDenied for the hello of a server that must not be used.
        """
        self.name = name
        self._call = call
        self._frame_type = frame_type
        self._hello = hello
        self._on_frame = on_frame
        self._on_up = on_up
        self._on_down = on_down
        self._on_rejected = on_rejected
        self._capacity = capacity
        self._check_hello = check_hello
        self._log = _discard_event if is_quiet else log.info
        self._endpoint: StreamEndpoint[Out, In] | None = None
        self._is_closing = False
        self._rejection = ""  # the last one that was logged

    def __repr__(self) -> str:
        return f"<Link {self.name} {'up' if self.is_up else 'down'}>"

    @property
    def is_up(self) -> bool:
        return self._endpoint is not None and not self._endpoint.close_reason

    @property
    def peer(self) -> Hello | None:
        return self._endpoint.hello if self._endpoint else None

    def send(self, frame: Out, *, max_delay_s: float = 0.0) -> bool:
        """Queue `frame`. Return False if the link is down, in which case `on_down` was or is about to be called.

        `max_delay_s` as in `StreamEndpoint.send`.
        """
        return self._endpoint is not None and self._endpoint.send(frame, max_delay_s=max_delay_s)

    def expedite(self) -> None:
        """Write delayed frames now."""
        if self._endpoint:
            self._endpoint.expedite()

    def end(self, reason: str) -> None:
        """Announce that no frame follows; the peer closes the stream when it has finished."""
        self.send(self._frame_type(end=End(reason=reason)))

    def close(self, reason: str) -> None:
        """Send `end` as the last frame; `run` returns once the peer has closed the stream."""
        self._is_closing = True
        if self._endpoint:
            self._endpoint.send_end(reason)

    async def flush(self) -> None:
        if self._endpoint:
            await self._endpoint.flush()

    async def run(self) -> None:
        """Stay connected until cancelled or closed."""
        backoff_s = RECONNECT_BACKOFF_S[0]
        while not self._is_closing:
            was_up = await self.run_once()
            backoff_s = RECONNECT_BACKOFF_S[0] if was_up else min(2 * backoff_s, RECONNECT_BACKOFF_S[1])
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads reconnects

    async def run_once(self) -> bool:
        """Run one stream to its end. Return True if the peer sent its hello."""
        endpoint = StreamEndpoint[Out, In](self._frame_type, self._hello, self._capacity)
        call = self._call()
        writing = asyncio.create_task(endpoint.write(call.write))
        try:
            async with endpoint.timeout:
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    endpoint.accept_hello(await call.read(), self._check_hello)
                if not self._is_closing:
                    endpoint.ticks.start()
                    self._mark_up(endpoint)
                    await self._read(call, endpoint)
        except TimeoutError:
            endpoint.close_reason = endpoint.close_reason or "no hello"
            await self._log_failed_call(call)
        except (
            grpc.RpcError,
            FailedPrecondition,
            PermissionDenied,
            FrameOutOfRange,
            asyncio.InvalidStateError,
        ) as error:
            endpoint.close_reason = endpoint.close_reason or _reason(error)
            self._log_rejection(error)
            if self._on_rejected and isinstance(error, grpc.aio.AioRpcError) and not endpoint.hello.instance_id:
                self._on_rejected(error_from_rpc(error))
        except Exception:
            log.exception("frame_failed", link=self.name)  # the next stream starts from a clean state
            endpoint.close_reason = "frame failed"
        finally:
            self._mark_down(endpoint)
            endpoint.ticks.stop()
            call.cancel()
            await _cancelled(writing)
        return bool(endpoint.hello.instance_id)

    async def _read(self, call: Any, endpoint: StreamEndpoint[Out, In]) -> None:
        while not endpoint.has_peer_ended:
            frame = await call.read()
            if frame is grpc.aio.EOF:
                return
            for each in endpoint.data_frames(frame):
                self._on_frame(each)

    def _mark_up(self, endpoint: StreamEndpoint[Out, In]) -> None:
        counters.open += 1
        self._endpoint = endpoint
        self._log("link_up", link=self.name, peer=endpoint.hello.instance_id)
        if self._on_up:
            self._on_up(endpoint.hello)

    def _log_rejection(self, error: BaseException) -> None:
        """Log once per reason that a peer rejects the stream or our frames, because a reconnect will not help.

        The same holds for a peer whose frames this end rejects.
        """
        reason = _reason(error)
        if _is_rejection(error) and reason != self._rejection:
            self._rejection = reason
            self._log("link_rejected", link=self.name, because=reason)

    async def _log_failed_call(self, call: Any) -> None:
        """Log the status of a call that failed before the writer or the reader received it."""
        if self._endpoint is None and call.done() and await call.code() is not grpc.StatusCode.OK:
            failure = (await call.code(), await call.initial_metadata(), await call.trailing_metadata())
            self._log_rejection(grpc.aio.AioRpcError(*failure, await call.details()))

    def _mark_down(self, endpoint: StreamEndpoint[Out, In]) -> None:
        endpoint.mark_closed("ended" if endpoint.has_peer_ended or endpoint.has_sent_end else "cut")
        if self._endpoint is not endpoint:
            return
        counters.open -= 1
        self._endpoint = None
        self._log("link_down", link=self.name, peer=endpoint.hello.instance_id, because=endpoint.close_reason)
        if self._on_down:
            self._on_down(endpoint.close_reason)


def _discard_event(_event: str, **_facts: object) -> None: ...


_REJECTIONS = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
)


def _is_rejection(error: BaseException) -> bool:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code() in _REJECTIONS or _has_tls_failed(error.details() or "")
    return isinstance(error, FailedPrecondition | PermissionDenied | FrameOutOfRange)


def _has_tls_failed(details: str) -> bool:
    """Whether the text of gRPC says that a certificate was refused; it has no code for that."""
    return "andshake failed" in details or "erification" in details


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
