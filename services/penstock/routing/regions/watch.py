"""The service `RoutingService`: tells the edges of the own region whether it is drained."""

from typing import Any

from penstock.chassis.streams.link import Peer, accept_stream
from penstock.mesh.v1.routing_pb2 import RegionState, WatchRegionRequest, WatchRegionResponse
from penstock.mesh.v1.routing_pb2_grpc import RoutingServiceServicer
from penstock.routing.regions.traffic_plan import TrafficPlan
from penstock.v1.stream_pb2 import Hello

EdgePeer = Peer[WatchRegionResponse, WatchRegionRequest]


class RegionWatchService(RoutingServiceServicer):
    """The streams of edges. Each receives the state at its start, and again when it changes."""

    def __init__(self, plan: TrafficPlan, hello: Hello) -> None:
        self._state = _state_of(plan)
        self._hello = hello
        self._edges: set[EdgePeer] = set()

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {"edges_watching": len(self._edges)}

    def on_plan(self, plan: TrafficPlan) -> None:
        state = _state_of(plan)
        if state == self._state:
            return
        self._state = state
        for edge in self._edges:
            edge.send(WatchRegionResponse(state=state))

    def close(self) -> None:
        """End all streams, as the process drains."""
        for edge in self._edges:
            edge.send_end("routing drains")

    async def WatchRegion(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        async with accept_stream(context, WatchRegionResponse, self._hello, tiers=("edge",)) as peer:
            self._edges.add(peer)
            try:
                peer.send(WatchRegionResponse(state=self._state))
                async for _ in peer:
                    pass
            finally:
                self._edges.discard(peer)


def _state_of(plan: TrafficPlan) -> RegionState:
    return RegionState(region=plan.own, drained=plan.is_drained)
