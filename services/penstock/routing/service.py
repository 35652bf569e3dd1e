"""Aggregated discovery over gRPC: frames to the pure streams and back. No policy.

The messages are betterproto2's, which gRPC meets only as bytes, at the (de)serialisers below.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import structlog
from envoy_data_plane.envoy.service.discovery import v3 as discovery

from penstock.chassis.telemetry import meter
from penstock.routing.board import SnapshotBoard
from penstock.routing.delta import DeltaAsk, DeltaSubscription
from penstock.routing.frames import delta_ask, delta_frame, sotw_ask, sotw_frame
from penstock.routing.resource import ResourceType
from penstock.routing.sotw import SotwAsk, SotwSubscription
from penstock.routing.stream import Ask, XdsStream
from penstock.routing.subscription import Answer, Verdict

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
Request = discovery.DiscoveryRequest | discovery.DeltaDiscoveryRequest
RequestT = TypeVar("RequestT", discovery.DiscoveryRequest, discovery.DeltaDiscoveryRequest)
ResponseT = TypeVar("ResponseT", discovery.DiscoveryResponse, discovery.DeltaDiscoveryResponse)
AskT = TypeVar("AskT", bound=Ask)

log = structlog.get_logger()


class AggregatedDiscovery:
    def __init__(self, board: SnapshotBoard) -> None:
        self._board = board
        self._verdicts = meter().create_counter(
            "penstock.xds.verdicts", unit="{frame}", description="By type and verdict."
        )
        self._answers = meter().create_counter("penstock.xds.answers", unit="{frame}", description="By type.")

    async def StreamAggregatedResources(
        self,
        requests: AsyncIterator[discovery.DiscoveryRequest],
        context: grpc.aio.ServicerContext[discovery.DiscoveryRequest, discovery.DiscoveryResponse],
    ) -> None:
        stream: XdsStream[SotwAsk] = XdsStream(SotwSubscription)
        await self._converse(requests, context, stream, sotw_ask, sotw_frame)

    async def DeltaAggregatedResources(
        self,
        requests: AsyncIterator[discovery.DeltaDiscoveryRequest],
        context: grpc.aio.ServicerContext[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse],
    ) -> None:
        stream: XdsStream[DeltaAsk] = XdsStream(DeltaSubscription)
        await self._converse(requests, context, stream, delta_ask, delta_frame)

    async def _converse(
        self,
        requests: AsyncIterator[RequestT],
        context: grpc.aio.ServicerContext[RequestT, ResponseT],
        stream: XdsStream[AskT],
        ask: Callable[[RequestT], AskT],
        frame: Callable[[Answer], ResponseT],
    ) -> None:
        """Write what the stream owes whenever the proxy or the board has spoken, until one of them is gone."""
        with self._board.bell() as bell:
            await context.send_initial_metadata(())
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(requests, stream, ask, bell))
                listening.add_done_callback(lambda _: bell.set())
                while not (listening.done() or self._board.is_closed):
                    for answer in stream.due(self._board.snapshot):
                        await context.write(frame(answer))
                        self._answers.add(1, {"type": answer.type.name})
                    await bell.wait()
                    bell.clear()
                listening.cancel()

    async def _listen(
        self,
        requests: AsyncIterator[RequestT],
        stream: XdsStream[AskT],
        ask: Callable[[RequestT], AskT],
        bell: asyncio.Event,
    ) -> None:
        node = ""
        async for request in requests:
            if request.node is not None:  # sent with the first frame only
                node = request.node.id
            try:
                asked = ask(request)
            except ValueError:
                log.warning("xds_type_unknown", node=node, type=request.type_url)
                continue
            self._report(node, asked.type, stream.receive(asked), request)
            bell.set()

    def _report(self, node: str, kind: ResourceType, verdict: Verdict, request: Request) -> None:
        self._verdicts.add(1, {"type": kind.name, "verdict": verdict.name})
        if verdict is Verdict.NACK:
            error = request.error_detail.message if request.error_detail else ""
            log.error("xds_refused", node=node, type=kind.name, nonce=request.response_nonce, error=error)
        elif verdict is Verdict.ACK:
            log.info("xds_accepted", node=node, type=kind.name, nonce=request.response_nonce)


def add_discovery_to_server(service: AggregatedDiscovery, server: grpc.aio.Server) -> None:
    """What a generated `add_..._to_server` would do; the stubs that come with the messages serve grpclib only."""
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
