"""Two ways to send the same request over gRPC: a call each, and one session for all."""

import asyncio
import time
from typing import Any, Protocol

import grpc

from penstock.bench.history import CANCELLED, OK, History
from penstock.bench.load import Item
from penstock.chassis.errors import PenstockError, error_from_failure, error_from_rpc
from penstock.chassis.streams import PROTOCOL_VERSION, Link
from penstock.v1.inference_pb2 import (
    GenerateRequest,
    Sampling,
    SessionCancel,
    SessionGenerate,
    SessionRequest,
    SessionResponse,
)
from penstock.v1.stream_pb2 import Hello

TIMEOUT = 600.0  # s; the bound of one request
LINK_TIMEOUT = 10.0  # s

clock = time.perf_counter


class Api(Protocol):
    """Sends one request and keeps its history; never raises for what the mesh answers."""

    async def send(self, item: Item) -> History: ...


def request_of(item: Item, model: str) -> GenerateRequest:
    return GenerateRequest(
        model=model,
        text=item.prompt,
        max_output_tokens=item.output_tokens,
        sampling=Sampling(temperature=0.0),
        ignore_eos=True,
    )


def _fail(history: History, error: PenstockError) -> None:
    history.end(clock(), error.reason, error.code.name, error.retry_after)


class GrpcApi:
    """`Generate`, a call per request."""

    def __init__(self, stub: Any, model: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self._stub = stub
        self._model = model
        self._metadata = metadata

    async def send(self, item: Item) -> History:
        history = History(item.number, clock())
        call = self._stub.Generate(request_of(item, self._model), metadata=self._metadata, timeout=TIMEOUT)
        try:
            async for frame in call:
                if item.cancel_after is not None and history.tokens >= item.cancel_after:
                    call.cancel()
                    history.end(clock(), CANCELLED)
                    return history
                self._take(frame, history)
        except grpc.aio.AioRpcError as error:
            _fail(history, error_from_rpc(error))
        return history

    @staticmethod
    def _take(frame: Any, history: History) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "accepted":
            history.prompt_tokens = frame.accepted.prompt_tokens
        elif kind == "delta":
            history.take(clock(), frame.delta.first_index, len(frame.delta.token_ids))
        elif kind == "finished":
            history.usage_tokens = frame.finished.usage.output_tokens
            history.end(clock(), OK)


class SessionApi:
    """`Session`: every request on one stream."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._running: dict[int, tuple[Item, History, asyncio.Event]] = {}
        self._link: Link[SessionRequest, SessionResponse] | None = None
        self._up = asyncio.Event()

    async def run(self, stub: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._link = Link(
            "session",
            lambda: stub.Session(metadata=metadata),
            SessionRequest,
            Hello(protocol=PROTOCOL_VERSION, instance_id="bench", tier="client"),
            on_frame=self._take,
            on_up=lambda _: self._up.set(),
            on_down=self._lost,
            is_quiet=True,
        )
        await self._link.run()

    async def up(self) -> None:
        async with asyncio.timeout(LINK_TIMEOUT):
            await self._up.wait()

    async def send(self, item: Item) -> History:
        history, done = History(item.number, clock()), asyncio.Event()
        self._running[item.number] = (item, history, done)
        request = request_of(item, self._model)
        generate = SessionGenerate(handle=item.number, request=request)
        if not self._link or not self._link.send(SessionRequest(generate=generate)):
            self._running.pop(item.number)
            history.end(clock(), "CONNECTION_LOST", "UNAVAILABLE")
            return history
        async with asyncio.timeout(TIMEOUT):
            await done.wait()
        return history

    def _take(self, frame: SessionResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "step":
            self._step(frame.step)
        elif kind == "finished":
            _, history, _ = self._running[frame.finished.handle]
            history.usage_tokens = frame.finished.finished.usage.output_tokens
            self._end(frame.finished.handle, OK)
        elif kind == "cancelled":
            self._end(frame.cancelled.handle, CANCELLED)
        elif kind == "failed":
            _, history, done = self._running.pop(frame.failed.handle)
            _fail(history, error_from_failure(frame.failed.failure))
            done.set()

    def _step(self, step: Any) -> None:
        now = clock()
        for handle, first_index, count in zip(step.handles, step.first_indexes, step.counts, strict=True):
            item, history, _ = self._running[handle]
            history.take(now, first_index, count)
            if item.cancel_after is not None and history.tokens >= item.cancel_after and self._link:
                self._link.send(SessionRequest(cancel=SessionCancel(handle=handle)))

    def _end(self, handle: int, outcome: str) -> None:
        _, history, done = self._running.pop(handle)
        history.end(clock(), outcome)
        done.set()

    def _lost(self, _reason: str) -> None:
        for _, history, done in self._running.values():
            history.end(clock(), "CONNECTION_LOST", "UNAVAILABLE")
            done.set()
        self._running.clear()
