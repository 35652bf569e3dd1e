"""Two ways to send the same request over gRPC: a call each, and one session for all."""

import asyncio
import time
from typing import Any, Protocol

import grpc

from penstock.bench.load import BenchRequest
from penstock.bench.transcript import CANCELLED, OK, Transcript
from penstock.chassis.errors import PenstockError, error_from_failure, error_from_rpc
from penstock.chassis.streams.link import PROTOCOL_VERSION, Link
from penstock.v1.inference_pb2 import (
    GenerateRequest,
    Sampling,
    SessionCancel,
    SessionGenerate,
    SessionRequest,
    SessionResponse,
)
from penstock.v1.stream_pb2 import Hello

REQUEST_TIMEOUT_S = 600.0  # s; the bound of one request
LINK_TIMEOUT_S = 10.0  # s

clock = time.perf_counter


class LoadDriver(Protocol):
    """Sends one request and keeps its history; never raises for what the mesh answers."""

    async def send(self, item: BenchRequest) -> Transcript: ...


def generate_request(item: BenchRequest, model: str) -> GenerateRequest:
    return GenerateRequest(
        model=model,
        text=item.prompt,
        max_output_tokens=item.output_tokens,
        sampling=Sampling(temperature=0.0),
        ignore_eos=True,
    )


def _record_error(transcript: Transcript, error: PenstockError) -> None:
    transcript.end(clock(), error.reason, error.code.name, error.retry_after)


class GrpcDriver:
    """`Generate`, a call per request."""

    def __init__(self, stub: Any, model: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self._stub = stub
        self._model = model
        self._metadata = metadata

    async def send(self, item: BenchRequest) -> Transcript:
        history = Transcript(item.number, clock())
        call = self._stub.Generate(
            generate_request(item, self._model), metadata=self._metadata, timeout=REQUEST_TIMEOUT_S
        )
        try:
            async for frame in call:
                if item.cancel_after is not None and history.tokens >= item.cancel_after:
                    call.cancel()
                    history.end(clock(), CANCELLED)
                    return history
                self._on_frame(frame, history)
        except grpc.aio.AioRpcError as error:
            _record_error(history, error_from_rpc(error))
        return history

    @staticmethod
    def _on_frame(frame: Any, transcript: Transcript) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "accepted":
            transcript.prompt_tokens = frame.accepted.prompt_tokens
        elif kind == "delta":
            transcript.record(clock(), frame.delta.first_index, len(frame.delta.token_ids))
        elif kind == "finished":
            transcript.usage_tokens = frame.finished.usage.output_tokens
            transcript.end(clock(), OK)


class SessionDriver:
    """`Session`: every request on one stream."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._running: dict[int, tuple[BenchRequest, Transcript, asyncio.Event]] = {}
        self._link: Link[SessionRequest, SessionResponse] | None = None
        self._is_connected = asyncio.Event()

    async def run(self, stub: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self._link = Link(
            "session",
            lambda: stub.Session(metadata=metadata),
            SessionRequest,
            Hello(protocol=PROTOCOL_VERSION, instance_id="bench", tier="client"),
            on_frame=self._on_frame,
            on_up=lambda _: self._is_connected.set(),
            on_down=self._on_lost,
            is_quiet=True,
        )
        await self._link.run()

    async def wait_connected(self) -> None:
        async with asyncio.timeout(LINK_TIMEOUT_S):
            await self._is_connected.wait()

    async def send(self, item: BenchRequest) -> Transcript:
        history, done = Transcript(item.number, clock()), asyncio.Event()
        self._running[item.number] = (item, history, done)
        request = generate_request(item, self._model)
        generate = SessionGenerate(handle=item.number, request=request)
        if not self._link or not self._link.send(SessionRequest(generate=generate)):
            self._running.pop(item.number)
            history.end(clock(), "CONNECTION_LOST", "UNAVAILABLE")
            return history
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            await done.wait()
        return history

    def _on_frame(self, frame: SessionResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "step":
            self._on_step(frame.step)
        elif kind == "finished":
            _, history, _ = self._running[frame.finished.handle]
            history.usage_tokens = frame.finished.finished.usage.output_tokens
            self._end(frame.finished.handle, OK)
        elif kind == "cancelled":
            self._end(frame.cancelled.handle, CANCELLED)
        elif kind == "failed":
            _, history, done = self._running.pop(frame.failed.handle)
            _record_error(history, error_from_failure(frame.failed.failure))
            done.set()

    def _on_step(self, step: Any) -> None:
        now = clock()
        for handle, first_index, count in zip(step.handles, step.first_indexes, step.counts, strict=True):
            item, history, _ = self._running[handle]
            history.record(now, first_index, count)
            if item.cancel_after is not None and history.tokens >= item.cancel_after and self._link:
                self._link.send(SessionRequest(cancel=SessionCancel(handle=handle)))

    def _end(self, handle: int, outcome: str) -> None:
        _, history, done = self._running.pop(handle)
        history.end(clock(), outcome)
        done.set()

    def _on_lost(self, _reason: str) -> None:
        for _, history, done in self._running.values():
            history.end(clock(), "CONNECTION_LOST", "UNAVAILABLE")
            done.set()
        self._running.clear()
