"""A call for each request: `Generate`, and the unary calls."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from penstock.chassis.errors import PenstockError, error_from_rpc
from penstock.client.endpoints import Endpoint, Endpoints
from penstock.client.progress import Event
from penstock.v1.inference_pb2 import GenerateRequest

Answer = TypeVar("Answer")
Metadata = tuple[tuple[str, str], ...]

# The edge ends a request in time by itself; this only bounds an edge that has stopped.
GRACE = 2.0  # s


class Calls:
    def __init__(self, endpoints: Endpoints, metadata: Metadata) -> None:
        self._endpoints = endpoints
        self._metadata = metadata

    async def attempt(self, request: GenerateRequest, patience: float) -> AsyncGenerator[Event, None]:
        endpoint = await self._endpoints.connected(patience)
        timeout = request.timeout.ToTimedelta().total_seconds() + GRACE if request.HasField("timeout") else None
        call: Any = endpoint.stub.Generate(request, metadata=self._metadata, timeout=timeout)
        try:
            async for frame in call:
                if kind := frame.WhichOneof("frame"):
                    yield getattr(frame, kind)
        except grpc.aio.AioRpcError as error:
            raise self._told(error, endpoint) from error
        finally:
            call.cancel()

    async def unary(self, call: Callable[[Endpoint, Metadata], Awaitable[Answer]], patience: float) -> Answer:
        endpoint = await self._endpoints.connected(patience)
        try:
            return await call(endpoint, self._metadata)
        except grpc.aio.AioRpcError as error:
            raise self._told(error, endpoint) from error

    def _told(self, error: grpc.aio.AioRpcError, endpoint: Endpoint) -> PenstockError:
        if error.code() is grpc.StatusCode.UNAVAILABLE or "RST_STREAM" in (error.details() or ""):
            self._endpoints.failed(endpoint)
        return error_from_rpc(error)
