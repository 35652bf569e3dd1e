"""Transport with one gRPC call per request: `Generate`, and the unary calls."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import PenstockError, error_from_rpc
from penstock.client.endpoints import Endpoint, Endpoints, Metadata
from penstock.client.progress import Event
from penstock.v1.inference_pb2 import GenerateRequest

Response = TypeVar("Response")

# The edge ends a request at its timeout. The call's deadline is later, for an edge that has stalled.
DEADLINE_MARGIN_S = 2.0


def traced(metadata: Metadata, traceparent: str) -> Metadata:
    """Return the metadata of a call in the trace of `traceparent`, which may be empty. Proxies read metadata alone."""
    return (*metadata, ("traceparent", traceparent)) if traceparent else metadata


class CallTransport:
    """Runs each attempt as a call of its own on the next connected endpoint."""

    def __init__(self, endpoints: Endpoints, metadata: Metadata) -> None:
        self._endpoints = endpoints
        self._metadata = metadata

    async def attempt(self, request: GenerateRequest, connect_timeout: float) -> AsyncGenerator[Event, None]:
        endpoint = await self._endpoints.next_connected(connect_timeout)
        timeout = seconds_of(request.timeout) + DEADLINE_MARGIN_S if request.HasField("timeout") else None
        metadata, began_at = traced(self._metadata, request.traceparent), time.monotonic()
        call: Any = endpoint.stub.Generate(request, metadata=metadata, timeout=timeout)
        try:
            async for frame in call:
                if kind := frame.WhichOneof("frame"):
                    yield getattr(frame, kind)
        except grpc.aio.AioRpcError as error:
            raise self._error_from(error, endpoint, began_at) from error
        finally:
            call.cancel()

    async def unary(
        self, call: Callable[[Endpoint, Metadata], Awaitable[Response]], connect_timeout: float
    ) -> Response:
        endpoint, began_at = await self._endpoints.next_connected(connect_timeout), time.monotonic()
        try:
            return await call(endpoint, self._metadata)
        except grpc.aio.AioRpcError as error:
            raise self._error_from(error, endpoint, began_at) from error

    def _error_from(self, error: grpc.aio.AioRpcError, endpoint: Endpoint, began_at: float) -> PenstockError:
        if error.code() is grpc.StatusCode.UNAVAILABLE or "RST_STREAM" in (error.details() or ""):
            self._endpoints.mark_failed(endpoint, began_at)
        return error_from_rpc(error)
