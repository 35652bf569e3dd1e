"""Scripted edges, and clients of them."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from inference_server import inference_server
from penstock.chassis.errors import (
    Unavailable,
)
from penstock.chassis.streams.link import accept_stream
from penstock.client import Client, RetryPolicy
from penstock.v1 import inference_pb2 as pb
from penstock.v1.inference_pb2 import GenerateRequest, GenerateResponse, SessionResponse
from penstock.v1.stream_pb2 import Hello

WORDS = ["Once", " upon", " a", " time", " there", " was"]
SEED = 42
FAST_RETRIES = RetryPolicy(backoff=(0.001, 0.002))


class EdgeDied(Exception):
    """Raised in the middle of an answer to simulate a lost edge."""


@dataclass
class ScriptedEdge:
    """Answers each request with WORDS, one token each. `script` has one step for each attempt."""

    script: list = field(default_factory=list)  # number of tokens before the cut, or the error of a rejection
    requests: list = field(default_factory=list)
    metadata: list = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def next_step(self):
        return self.script.pop(0) if self.script else len(WORDS) + 1

    async def generate(self, request: GenerateRequest, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        step = self.next_step()
        if isinstance(step, Exception):
            raise step
        start = len(request.resume.token_ids)
        try:
            yield GenerateResponse(accepted=accepted_of(request))
            for index in range(start, len(WORDS)):
                if index - start >= step:
                    raise Unavailable("this edge drains", reason="DRAINING", retry_after=0.001)
                yield GenerateResponse(delta=delta_of(index))
            yield GenerateResponse(finished=finished_of(start))
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise


def accepted_of(request) -> pb.Accepted:
    return pb.Accepted(request_id="r-1", model="m", prompt_tokens=3, max_output_tokens=6, seed=SEED)


def delta_of(index) -> pb.Delta:
    return pb.Delta(text=WORDS[index], token_ids=[100 + index], first_index=index)


def finished_of(start) -> pb.Finished:
    usage = pb.Usage(prompt_tokens=3, output_tokens=len(WORDS) - start)
    return pb.Finished(reason=pb.FINISH_REASON_LENGTH, usage=usage)


@asynccontextmanager
async def client_of(*edges, retries=FAST_RETRIES, **methods):
    """A client of one server for each of `edges`."""
    async with AsyncExitStack() as stack:
        targets = []
        for edge in edges:
            served = {"Generate": edge.generate} if isinstance(edge, ScriptedEdge) else {"Generate": edge}
            _, server = await stack.enter_async_context(inference_server(**served, **methods))
            targets.append(server.address)
        yield await stack.enter_async_context(Client(*targets, api_key="pk_test", retries=retries))


@dataclass
class SessionEdge:
    """Serves one session at a time; the test sends its responses."""

    peers: list = field(default_factory=list)
    frames: asyncio.Queue = field(default_factory=asyncio.Queue)
    session_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def session(self, request_iterator, context):
        async with accept_stream(
            context, SessionResponse, Hello(protocol=1, instance_id="edge-1", tier="edge")
        ) as peer:
            self.peers.append(peer)
            async for frame in peer:
                self.frames.put_nowait(frame)
            self.session_ended.set()

    async def next_frame(self, kind):
        async with asyncio.timeout(5):
            frame = await self.frames.get()
        assert frame.WhichOneof("frame") == kind
        return getattr(frame, kind)

    def send(self, **frame):
        assert self.peers[-1].send(SessionResponse(**frame))

    def accept(self, request):
        self.send(accepted=pb.SessionAccepted(handle=request.handle, accepted=accepted_of(request.request)))

    def step(self, *parts):
        """Send one step of several requests: (handle, index of its token)."""
        self.send(
            step=pb.SessionStep(
                handles=[handle for handle, _ in parts],
                texts=[WORDS[index] for _, index in parts],
                first_indexes=[index for _, index in parts],
                counts=[1] * len(parts),
                token_ids=[100 + index for _, index in parts],
            )
        )

    def finish(self, handle, start=0):
        self.send(finished=pb.SessionFinished(handle=handle, finished=finished_of(start)))


@asynccontextmanager
async def session_of(edge):
    async with (
        inference_server(Session=edge.session) as (_, server),
        Client(server.address, retries=FAST_RETRIES) as client,
        client.session() as session,
    ):
        yield session


@asynccontextmanager
async def session_across(*edges):
    """A session that may move between `edges`, from the first on."""
    async with AsyncExitStack() as stack:
        served = [await stack.enter_async_context(inference_server(Session=edge.session)) for edge in edges]
        targets = [server.address for _, server in served]
        client = await stack.enter_async_context(Client(*targets, retries=FAST_RETRIES))
        yield await stack.enter_async_context(client.session())


def rejection(request, reason, retry_after=0.01):
    failure = Unavailable("not here", reason=reason, retry_after=retry_after).failure()
    return {"failed": pb.SessionFailed(handle=request.handle, failure=failure)}


async def answer_request(edge, request, start=0):
    for index in range(start, len(WORDS)):
        edge.step((request.handle, index))
    edge.finish(request.handle, start=start)


async def next_request(edge):
    """Return the next request, ignoring the ends of old streams."""
    while True:
        async with asyncio.timeout(5):
            frame = await edge.frames.get()
        if frame.WhichOneof("frame") == "generate":
            return frame.generate
