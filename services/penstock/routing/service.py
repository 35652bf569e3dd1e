"""Aggregated discovery over gRPC: passes messages between gRPC and the pure xDS streams. Holds no policy.

The messages are betterproto2's; gRPC sees only bytes, through the (de)serializers below.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import structlog
from envoy_data_plane.envoy.service.discovery import v3 as discovery

from penstock.chassis.observability.metrics import counter
from penstock.routing.resources.types import ResourceType
from penstock.routing.series import XDS_REQUESTS, XDS_RESPONSES
from penstock.routing.snapshot_cache import SnapshotCache
from penstock.routing.xds.delta import DeltaRequest, DeltaSubscription
from penstock.routing.xds.frames import delta_request, delta_response, sotw_request, sotw_response
from penstock.routing.xds.sotw import SotwRequest, SotwSubscription
from penstock.routing.xds.stream import XdsRequest, XdsStream
from penstock.routing.xds.subscription import RequestKind, XdsResponse

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
Request = discovery.DiscoveryRequest | discovery.DeltaDiscoveryRequest
RequestT = TypeVar("RequestT", discovery.DiscoveryRequest, discovery.DeltaDiscoveryRequest)
ResponseT = TypeVar("ResponseT", discovery.DiscoveryResponse, discovery.DeltaDiscoveryResponse)
XdsRequestT = TypeVar("XdsRequestT", bound=XdsRequest)

log = structlog.get_logger()

_requests = counter(XDS_REQUESTS)
_responses = counter(XDS_RESPONSES)


class AggregatedDiscovery:
    def __init__(self, cache: SnapshotCache) -> None:
        self._cache = cache

    async def StreamAggregatedResources(
        self,
        requests: AsyncIterator[discovery.DiscoveryRequest],
        context: grpc.aio.ServicerContext[discovery.DiscoveryRequest, discovery.DiscoveryResponse],
    ) -> None:
        stream: XdsStream[SotwRequest] = XdsStream(SotwSubscription)
        await self._serve_stream(requests, context, stream, sotw_request, sotw_response)

    async def DeltaAggregatedResources(
        self,
        requests: AsyncIterator[discovery.DeltaDiscoveryRequest],
        context: grpc.aio.ServicerContext[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse],
    ) -> None:
        stream: XdsStream[DeltaRequest] = XdsStream(DeltaSubscription)
        await self._serve_stream(requests, context, stream, delta_request, delta_response)

    async def _serve_stream(
        self,
        requests: AsyncIterator[RequestT],
        context: grpc.aio.ServicerContext[RequestT, ResponseT],
        stream: XdsStream[XdsRequestT],
        decode: Callable[[RequestT], XdsRequestT],
        encode: Callable[[XdsResponse], ResponseT],
    ) -> None:
        """Write due responses after each request and each new snapshot, until the proxy ends or the cache is closed."""
        with self._cache.watch() as changed:
            await context.send_initial_metadata(())
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._read_requests(requests, stream, decode, changed))
                reader.add_done_callback(lambda _: changed.set())
                while not (reader.done() or self._cache.is_closed):
                    for response in stream.due(self._cache.snapshot):
                        await context.write(encode(response))
                        _responses.labels(response.type.name).inc()
                    await changed.wait()
                    changed.clear()
                reader.cancel()

    async def _read_requests(
        self,
        requests: AsyncIterator[RequestT],
        stream: XdsStream[XdsRequestT],
        decode: Callable[[RequestT], XdsRequestT],
        changed: asyncio.Event,
    ) -> None:
        node = ""
        async for message in requests:
            if message.node is not None:  # set in the first message only
                node = message.node.id
            try:
                request = decode(message)
            except ValueError:
                log.warning("xds_type_unknown", node=node, type=message.type_url)
                continue
            self._record(node, request.type, stream.receive(request), message)
            changed.set()

    def _record(self, node: str, resource_type: ResourceType, kind: RequestKind, message: Request) -> None:
        _requests.labels(resource_type.name, kind.name).inc()
        if kind is RequestKind.NACK:
            error = message.error_detail.message if message.error_detail else ""
            log.error("xds_nack", node=node, type=resource_type.name, nonce=message.response_nonce, error=error)
        elif kind is RequestKind.ACK:
            log.info("xds_ack", node=node, type=resource_type.name, nonce=message.response_nonce)


def add_discovery_to_server(service: AggregatedDiscovery, server: grpc.aio.Server) -> None:
    """Register the service, as a generated `add_..._to_server` would; the stubs beside the messages are for grpclib."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "StreamAggregatedResources": grpc.stream_stream_rpc_method_handler(
            service.StreamAggregatedResources,
            request_deserializer=discovery.DiscoveryRequest.FromString,
            response_serializer=discovery.DiscoveryResponse.SerializeToString,
        ),
        "DeltaAggregatedResources": grpc.stream_stream_rpc_method_handler(
            service.DeltaAggregatedResources,
            request_deserializer=discovery.DeltaDiscoveryRequest.FromString,
            response_serializer=discovery.DeltaDiscoveryResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
