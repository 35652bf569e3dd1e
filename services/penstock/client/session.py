"""Many requests on one stream: the cheapest way to stream, per token, and it goes on when its edge does not."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Unpack
from uuid import uuid4

from penstock.chassis.errors import Cancelled, PenstockError, Unavailable, error_from_failure
from penstock.chassis.streams import PROTOCOL, Link
from penstock.client.answer import Answer
from penstock.client.calls import Metadata
from penstock.client.endpoints import Endpoint, Endpoints
from penstock.client.progress import Event
from penstock.client.request import Options, Prompt, generate_request
from penstock.client.retries import CONNECTION_LOST, RetryBudget
from penstock.v1.inference_pb2 import (
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

# Unread events of one request; bounded by the length of its own answer.
Inbox = asyncio.Queue[Event | PenstockError]


class Session:
    """`generate` as the client has it, all on one stream. Runs while the client's `session()` block does."""

    def __init__(self, endpoints: Endpoints, metadata: Metadata, budget: RetryBudget) -> None:
        self._endpoints = endpoints
        self._metadata = metadata
        self._budget = budget
        self._endpoint: Endpoint | None = None
        self._handles = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}  # of the requests that run
        self._up = asyncio.Event()
        self._is_closed = False
        self._link = Link[SessionRequest, SessionResponse](
            "session",
            self._call,
            SessionRequest,
            Hello(protocol=PROTOCOL, instance_id=f"client-{uuid4().hex[:8]}", tier="client"),
            on_frame=self._on_frame,
            on_up=lambda _: self._up.set(),
            on_down=self._on_down,
            is_quiet=True,
        )

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Answer:
        return Answer(self, generate_request(prompt, **options), self._budget)

    async def complete(self, prompt: Prompt, **options: Unpack[Options]) -> str:
        async with self.generate(prompt, **options) as answer:
            return await answer.read()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        await self._link.run()

    async def end(self) -> None:
        """Say that nothing more comes; what still runs is cancelled with the stream."""
        self.close()
        self._link.end("closed by the client")
        await self._link.flush()

    def close(self) -> None:
        """End what runs and take no more."""
        self._is_closed = True
        self._up.set()  # whoever waits for an edge is to hear of it too
        self._fail_all(_closed())

    async def attempt(self, request: GenerateRequest, patience: float) -> AsyncGenerator[Event, None]:
        await self._connected(patience)
        if self._is_closed:
            raise _closed()
        handle, inbox = next(self._handles), Inbox()
        self._inboxes[handle] = inbox
        try:
            if not self._link.send(SessionRequest(generate=SessionGenerate(handle=handle, request=request))):
                raise _lost("the stream was closed")
            while True:
                event = await inbox.get()
                if isinstance(event, PenstockError):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            if self._inboxes.pop(handle, None):  # it runs still
                self._link.send(SessionRequest(cancel=SessionCancel(handle=handle)))

    async def _connected(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self._up.wait()
        except TimeoutError:
            raise _lost(f"no edge within {patience:.1f} s") from None

    def _call(self) -> Any:
        self._endpoint = self._endpoints.next()
        return self._endpoint.stub.Session(metadata=self._metadata)

    def _on_down(self, reason: str) -> None:
        if not self._is_closed:
            self._up.clear()
        if self._endpoint:
            self._endpoints.failed(self._endpoint)
        self._fail_all(_lost(reason))

    def _fail_all(self, error: PenstockError) -> None:
        for inbox in self._inboxes.values():
            inbox.put_nowait(error)
        self._inboxes.clear()

    def _on_frame(self, frame: SessionResponse) -> None:
        match frame.WhichOneof("frame"):
            case "step":
                for handle, delta in deltas_of(frame.step):
                    if inbox := self._inboxes.get(handle):
                        inbox.put_nowait(delta)
            case "accepted":
                if inbox := self._inboxes.get(frame.accepted.handle):
                    inbox.put_nowait(frame.accepted.accepted)
            case "finished":
                self._last(frame.finished.handle, frame.finished.finished)
            case "failed":
                self._last(frame.failed.handle, error_from_failure(frame.failed.failure))
            case "cancelled":
                self._last(frame.cancelled.handle, Cancelled("the edge cancelled the request"))

    def _last(self, handle: int, event: Event | PenstockError) -> None:
        if inbox := self._inboxes.pop(handle, None):
            inbox.put_nowait(event)


def deltas_of(step: SessionStep) -> Iterator[tuple[int, Delta]]:
    """Take a step's parallel arrays apart: which request, and what is new of it."""
    start = 0
    for handle, text, first_index, count in zip(step.handles, step.texts, step.first_indexes, step.counts, strict=True):
        end = start + count
        token_ids, logprobs = step.token_ids[start:end], step.logprobs[start:end]
        yield handle, Delta(text=text, token_ids=token_ids, first_index=first_index, logprobs=logprobs)
        start = end


def _closed() -> Cancelled:
    return Cancelled("the session is closed; its block was left")


def _lost(reason: str) -> Unavailable:
    return Unavailable(f"the session was lost: {reason}", reason=CONNECTION_LOST)
