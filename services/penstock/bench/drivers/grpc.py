"""The driver of the gRPC API, by an SDK client, by sessions of one, or by a plain client.

A plain client sends one call for each request and cannot resume: if the process that carries its call dies, the call
fails and has to be repeated.
"""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, Unpack

import grpc

from penstock.bench.load import BenchRequest
from penstock.bench.transcript import CANCELLED, Transcript
from penstock.chassis.channels import channel
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import PenstockError, Unavailable, error_from_rpc
from penstock.client import Client, Options, Session
from penstock.client.progress import TokenChunk
from penstock.client.request import Prompt, generate_request
from penstock.client.retries import CONNECTION_LOST
from penstock.v1.inference_pb2 import Finished, GenerateRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

NOT_FINISHED = "the answer is not finished; read it to its end first"


class PlainClient:
    """Calls `Generate` through the generated stub, on its own connection to `address`.

    A new call waits for the connection (gRPC's `wait_for_ready`); a call that has been sent is never sent again.
    """

    def __init__(self, address: str, api_key: str) -> None:
        self.address = address
        self._metadata = (("authorization", f"Bearer {api_key}"),)
        self._channel = channel(address)
        self._stub = InferenceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> "PlainAnswer":
        return PlainAnswer(self._call, generate_request(prompt, **options))

    def _call(self, request: GenerateRequest) -> Any:
        timeout = seconds_of(request.timeout) if request.HasField("timeout") else None
        return self._stub.Generate(request, metadata=self._metadata, timeout=timeout, wait_for_ready=True)


class PlainAnswer:
    """One call. Iterate it for pieces; iteration raises PenstockError if the call fails."""

    def __init__(self, start_call: Any, request: GenerateRequest) -> None:
        self._start_call = start_call
        self._request = request
        self._call: Any = None
        self._finished: Finished | None = None
        self.is_accepted = False  # an edge has accepted the request

    @property
    def finished(self) -> Finished:
        if self._finished is None:
            raise RuntimeError(NOT_FINISHED)
        return self._finished

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._call:
            self._call.cancel()

    async def __aiter__(self) -> AsyncIterator[TokenChunk]:
        self._call = self._start_call(self._request)
        try:
            async for frame in self._call:
                self.is_accepted = True
                match frame.WhichOneof("frame"):
                    case "delta":
                        yield TokenChunk(frame.delta.text, tuple(frame.delta.token_ids), frame.delta.first_index, ())
                    case "finished":
                        self._finished = frame.finished
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        if self._finished is None:
            raise Unavailable("the call ended without `finished`", reason=CONNECTION_LOST)


GeneratingClient: TypeAlias = Client | Session | PlainClient


class GrpcDriver:
    """Sends requests through `clients` in rotation."""

    def __init__(self, clients: Sequence[GeneratingClient], clock: Callable[[], float] = time.perf_counter) -> None:
        self._clients = itertools.cycle(clients)
        self._clock = clock

    async def send(self, request: BenchRequest, transcript: Transcript) -> None:
        answer = next(self._clients).generate(request.prompt, **request.options)
        try:
            async with answer:
                async for chunk in answer:
                    transcript.record_chunk(self._clock(), chunk)
                    if request.cancel_after is not None and transcript.tokens >= request.cancel_after:
                        transcript.end(self._clock(), CANCELLED)
                        return  # leaving the answer's block cancels the request
            transcript.finish(self._clock(), answer.finished)
        except PenstockError as error:
            transcript.fail(self._clock(), error)
        finally:
            transcript.is_accepted = answer.is_accepted
