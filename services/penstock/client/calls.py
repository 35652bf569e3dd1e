"""Transport with one gRPC call per request: `Generate`, and the unary calls."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import error_from_rpc
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
    """Runs each attempt as a call of its own on the next connected endpoint.

    A refusal of the region of an endpoint moves the attempt to an endpoint whose region has not refused the caller.
    """

    def __init__(self, endpoints: Endpoints, metadata: Metadata) -> None:
        self._endpoints = endpoints
        self._metadata = metadata

    async def attempt(self, request: GenerateRequest, connect_timeout: float) -> AsyncGenerator[Event, None]:
        timeout = seconds_of(request.timeout) + DEADLINE_MARGIN_S if request.HasField("timeout") else None
        metadata = traced(self._metadata, request.traceparent)
        while True:
            endpoint, began_at = await self._endpoints.next_connected(connect_timeout), time.monotonic()
            call: Any = endpoint.stub.Generate(request, metadata=metadata, timeout=timeout)
            try:
                async for frame in call:
                    if kind := frame.WhichOneof("frame"):
                        yield getattr(frame, kind)
            except grpc.aio.AioRpcError as error:
                self._raise_unless_moved(error, endpoint, began_at)
            else:
                return
            finally:
                call.cancel()

    async def unary(
        self, call: Callable[[Endpoint, Metadata], Awaitable[Response]], connect_timeout: float
    ) -> Response:
        while True:
            endpoint, began_at = await self._endpoints.next_connected(connect_timeout), time.monotonic()
            try:
                return await call(endpoint, self._metadata)
            except grpc.aio.AioRpcError as error:
                self._raise_unless_moved(error, endpoint, began_at)

    def _raise_unless_moved(self, error: grpc.aio.AioRpcError, endpoint: Endpoint, began_at: float) -> None:
        """Raise the PenstockError of a failed call, unless it can move to a target of another region."""
        if error.code() is grpc.StatusCode.UNAVAILABLE or "RST_STREAM" in (error.details() or ""):
            self._endpoints.mark_failed(endpoint, began_at)
        failure = error_from_rpc(error)
        if not self._endpoints.can_leave(endpoint, failure):
            raise failure from error
