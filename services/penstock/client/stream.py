"""Edge stream: one session stream to one edge, with the requests that run on it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress

from penstock.chassis.errors import (
    PenstockError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    error_from_failure,
)
from penstock.chassis.streams.link import Link
from penstock.chassis.streams.protocol import hello_of
from penstock.client.endpoints import Endpoint, Metadata
from penstock.client.progress import Event, TokenChunk
from penstock.client.retries import CONNECTION_LOST
from penstock.v1.inference_pb2 import (
    Accepted,
    Finished,
    GenerateRequest,
    SessionCancel,
    SessionGenerate,
    SessionRequest,
    SessionResponse,
    SessionStep,
)
from penstock.v1.stream_pb2 import Hello

DRAINING = "DRAINING"  # an edge that drains rejects new requests
CLOSE_TIMEOUT_S = 5.0  # for an edge to close a retired stream

# Unread events of one request. The length of its answer bounds them.
EventQueue = asyncio.Queue[Event | PenstockError]


class EdgeStream:
    """Accepts requests from connection to retirement, and stays open until they end or the stream is lost.

    `on_change` is called when the stream begins and when it ceases to accept requests.
    """

    def __init__(
        self, endpoint: Endpoint, metadata: Metadata, instance_id: str, on_change: Callable[["EdgeStream"], None]
    ) -> None:
        self.endpoint = endpoint
        self.was_connected = False
        self.rejection: PenstockError | None = None  # of the edge, which does not accept the caller
        self.is_accepting = False
        self._on_change = on_change
        self._handles = itertools.count(1)
        self._event_queues: dict[int, EventQueue] = {}  # of running requests, by handle
        self._unacknowledged: set[int] = set()  # handles for which the edge has sent no frame yet
        self._is_idle = asyncio.Event()
        self._retired = asyncio.Event()
        self._link = Link[SessionRequest, SessionResponse](
            "session",
            lambda: endpoint.stub.Session(metadata=metadata),
            SessionRequest,
            hello_of("client", instance_id),
            on_frame=self._on_frame,
            on_up=self._on_up,
            on_down=self._on_down,
            on_rejected=self._on_rejected,
            is_quiet=True,
        )

    def __repr__(self) -> str:
        accepting = ", accepting" if self.is_accepting else ""
        return f"<EdgeStream {self.endpoint.target} {len(self._event_queues)} requests{accepting}>"

    async def run(self) -> None:
        """Run the stream until it is lost, or retired and idle."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                closing = group.create_task(self._close_when_idle(limit))
                await self._link.run_once()
                closing.cancel()
        self._stop_accepting()

    async def wait_retired(self) -> None:
        """Wait until the stream accepts no more requests."""
        await self._retired.wait()

    def retire(self) -> None:
        """Accept no more requests. Running requests continue."""
        self._stop_accepting()
        self._check_idle()

    async def end(self, error: PenstockError) -> None:
        """End running requests with `error`, and send `end` to the edge."""
        self.fail(error)
        self._link.end("closed by the client")
        await self._link.flush()

    def fail(self, error: PenstockError) -> None:
        for events in self._event_queues.values():
            events.put_nowait(error)
        self._event_queues.clear()
        self._check_idle()

    async def attempt(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        handle, events = next(self._handles), EventQueue()
        self._event_queues[handle] = events
        self._unacknowledged.add(handle)
        try:
            if not self._link.send(SessionRequest(generate=SessionGenerate(handle=handle, request=request))):
                raise connection_lost("the stream was closed")
            while True:
                event = await events.get()
                if isinstance(event, PenstockError):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._unacknowledged.discard(handle)
            if self._event_queues.pop(handle, None):  # it is still running
                self._link.send(SessionRequest(cancel=SessionCancel(handle=handle)))
                self._check_idle()

    async def _close_when_idle(self, limit: asyncio.Timeout) -> None:
        """Send `end` once a retired stream is idle. The edge closes it, or the client after `CLOSE_TIMEOUT_S`."""
        await self._is_idle.wait()
        self._link.end("moved on")
        limit.reschedule(asyncio.get_running_loop().time() + CLOSE_TIMEOUT_S)

    def _check_idle(self) -> None:
        if not self._event_queues and not self.is_accepting:
            self._is_idle.set()

    def _stop_accepting(self) -> None:
        self._retired.set()
        if self.is_accepting:
            self.is_accepting = False
            self._on_change(self)

    # Events of the link.

    def _on_up(self, _: Hello) -> None:
        self.was_connected = True
        if not self._retired.is_set():
            self.is_accepting = True
            self._on_change(self)

    def _on_rejected(self, error: PenstockError) -> None:
        if isinstance(error, Unauthenticated | PermissionDenied):
            self.rejection = error

    def _on_down(self, reason: str) -> None:
        for handle in self._unacknowledged & self._event_queues.keys() if reason == "ended" else ():
            # An edge ends a stream once it is idle, so it has not started a request that crossed its `end` frame.
            self._deliver_last(
                handle, Unavailable("the edge ended the stream before it accepted the request", reason=DRAINING)
            )
        self.fail(connection_lost(reason))
        self._stop_accepting()

    def _on_frame(self, frame: SessionResponse) -> None:
        match frame.WhichOneof("frame"):
            case "step":
                for handle, chunk in chunks_of(frame.step):
                    self._deliver(handle, chunk)
            case "accepted":
                self._deliver(frame.accepted.handle, frame.accepted.accepted)
            case "finished":
                self._deliver_last(frame.finished.handle, frame.finished.finished)
            case "failed":
                self._deliver_last(frame.failed.handle, error_from_failure(frame.failed.failure))
            case "cancelled":  # a request that the client cancelled has no queue any more
                self._deliver_last(frame.cancelled.handle, connection_lost("the edge cancelled the request"))

    def _deliver(self, handle: int, event: Accepted | TokenChunk) -> None:
        self._unacknowledged.discard(handle)
        if events := self._event_queues.get(handle):
            events.put_nowait(event)

    def _deliver_last(self, handle: int, event: Event | PenstockError) -> None:
        if events := self._event_queues.pop(handle, None):
            events.put_nowait(event)
            self._check_idle()


def chunks_of(step: SessionStep) -> Iterator[tuple[int, TokenChunk]]:
    """Yield the handle and the new tokens of each request in a step's parallel arrays."""
    start, ids, logprobs = 0, tuple(step.token_ids), tuple(step.logprobs)
    top_start, top_ids, top_logprobs = 0, tuple(step.top_token_ids), tuple(step.top_logprobs)
    top_counts = step.top_counts or [0] * len(step.handles)
    columns = zip(step.handles, step.texts, step.first_indexes, step.counts, top_counts, strict=True)
    for handle, text, first_index, count, top_count in columns:
        end, top_end = start + count, top_start + count * top_count
        top = top_ids[top_start:top_end], top_logprobs[top_start:top_end]
        yield handle, TokenChunk(text, ids[start:end], first_index, logprobs[start:end], *top)
        start, top_start = end, top_end


def connection_lost(reason: str) -> Unavailable:
    return Unavailable(f"the session was lost: {reason}", reason=CONNECTION_LOST)
