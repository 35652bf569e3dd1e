"""One stream to one edge, with the requests that run on it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress

from penstock.chassis.errors import PenstockError, Unavailable, error_from_failure
from penstock.chassis.streams import PROTOCOL, Link
from penstock.client.calls import Metadata
from penstock.client.endpoints import Endpoint
from penstock.client.progress import Event
from penstock.client.retries import CONNECTION_LOST
from penstock.v1.inference_pb2 import (
    Accepted,
    Delta,
    Finished,
    GenerateRequest,
    SessionCancel,
    SessionGenerate,
    SessionRequest,
    SessionResponse,
    SessionStep,
)
from penstock.v1.stream_pb2 import Hello

DRAINING = "DRAINING"  # an edge that ends takes nothing new
LEAVE = 5.0  # s; for an edge to close a stream that is not wanted any more

# Unread events of one request; bounded by the length of its own answer.
Inbox = asyncio.Queue[Event | PenstockError]


class EdgeStream:
    """Takes requests from when it is up until it is retired, and lasts as long as one of them runs or until it is lost.

    `on_change` is called when it begins to take requests and when it ceases to, whatever for.
    """

    def __init__(
        self, endpoint: Endpoint, metadata: Metadata, instance_id: str, on_change: Callable[["EdgeStream"], None]
    ) -> None:
        self.endpoint = endpoint
        self.was_up = False
        self.is_taking = False
        self._on_change = on_change
        self._handles = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}  # of the requests that run
        self._untaken: set[int] = set()  # of those, what the edge has said nothing of
        self._is_idle = asyncio.Event()
        self._ceased = asyncio.Event()
        self._link = Link[SessionRequest, SessionResponse](
            "session",
            lambda: endpoint.stub.Session(metadata=metadata),
            SessionRequest,
            Hello(protocol=PROTOCOL, instance_id=instance_id, tier="client"),
            on_frame=self._on_frame,
            on_up=self._on_up,
            on_down=self._on_down,
            is_quiet=True,
        )

    def __repr__(self) -> str:
        return (
            f"<EdgeStream {self.endpoint.target} {len(self._inboxes)} requests{', taking' if self.is_taking else ''}>"
        )

    async def run(self) -> None:
        """Hold the stream until it is lost, or retired and empty."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                leaving = group.create_task(self._leave(limit))
                await self._link.run_once()
                leaving.cancel()
        self._cease()

    async def ceased(self) -> None:
        """Wait until it takes no more requests."""
        await self._ceased.wait()

    def retire(self) -> None:
        """Take no more; what runs goes on."""
        self._cease()
        self._look()

    async def end(self, error: PenstockError) -> None:
        """End what runs with `error`, and tell the edge that nothing more comes."""
        self.fail(error)
        self._link.end("closed by the client")
        await self._link.flush()

    def fail(self, error: PenstockError) -> None:
        for inbox in self._inboxes.values():
            inbox.put_nowait(error)
        self._inboxes.clear()
        self._look()

    async def attempt(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        handle, inbox = next(self._handles), Inbox()
        self._inboxes[handle] = inbox
        self._untaken.add(handle)
        try:
            if not self._link.send(SessionRequest(generate=SessionGenerate(handle=handle, request=request))):
                raise lost("the stream was closed")
            while True:
                event = await inbox.get()
                if isinstance(event, PenstockError):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._untaken.discard(handle)
            if self._inboxes.pop(handle, None):  # it runs still
                self._link.send(SessionRequest(cancel=SessionCancel(handle=handle)))
                self._look()

    async def _leave(self, limit: asyncio.Timeout) -> None:
        """Say that nothing more comes once a retired stream is empty; its edge closes it, or we do."""
        await self._is_idle.wait()
        self._link.end("moved on")
        limit.reschedule(asyncio.get_running_loop().time() + LEAVE)

    def _look(self) -> None:
        if not self._inboxes and not self.is_taking:
            self._is_idle.set()

    def _cease(self) -> None:
        self._ceased.set()
        if self.is_taking:
            self.is_taking = False
            self._on_change(self)

    # What the link says.

    def _on_up(self, _: Hello) -> None:
        self.was_up = self.is_taking = True
        self._on_change(self)

    def _on_down(self, reason: str) -> None:
        for handle in self._untaken & self._inboxes.keys() if reason == "ended" else ():
            # An edge ends a stream once nothing runs on it: what crossed with its last word was never begun.
            self._last(handle, Unavailable("the edge ended the stream before it took the request", reason=DRAINING))
        self.fail(lost(reason))
        self._cease()

    def _on_frame(self, frame: SessionResponse) -> None:
        match frame.WhichOneof("frame"):
            case "step":
                for handle, delta in deltas_of(frame.step):
                    self._tell(handle, delta)
            case "accepted":
                self._tell(frame.accepted.handle, frame.accepted.accepted)
            case "finished":
                self._last(frame.finished.handle, frame.finished.finished)
            case "failed":
                self._last(frame.failed.handle, error_from_failure(frame.failed.failure))
            case "cancelled":  # of a request that we have cancelled, nobody listens any more
                self._last(frame.cancelled.handle, lost("the edge let go of the request"))

    def _tell(self, handle: int, event: Accepted | Delta) -> None:
        self._untaken.discard(handle)
        if inbox := self._inboxes.get(handle):
            inbox.put_nowait(event)

    def _last(self, handle: int, event: Event | PenstockError) -> None:
        if inbox := self._inboxes.pop(handle, None):
            inbox.put_nowait(event)
            self._look()


def deltas_of(step: SessionStep) -> Iterator[tuple[int, Delta]]:
    """Take a step's parallel arrays apart: which request, and what is new of it."""
    start = 0
    for handle, text, first_index, count in zip(step.handles, step.texts, step.first_indexes, step.counts, strict=True):
        end = start + count
        token_ids, logprobs = step.token_ids[start:end], step.logprobs[start:end]
        yield handle, Delta(text=text, token_ids=token_ids, first_index=first_index, logprobs=logprobs)
        start = end


def lost(reason: str) -> Unavailable:
    return Unavailable(f"the session was lost: {reason}", reason=CONNECTION_LOST)
