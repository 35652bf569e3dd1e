"""The streams between tiers: who opens each, where, and the frame that begins it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse
from penstock.mesh.v1.batch_pb2 import RunRequest, RunResponse
from penstock.mesh.v1.queue_pb2 import DispatchRequest, DispatchResponse, SubmitRequest, SubmitResponse
from penstock.mesh.v1.region_pb2 import RegionServiceRunRequest, RegionServiceRunResponse
from penstock.mesh.v1.region_quota_pb2 import FollowRequest, FollowResponse
from penstock.mesh.v1.responses_pb2 import KeepRequest, KeepResponse
from penstock.mesh.v1.routing_pb2 import WatchRegionRequest, WatchRegionResponse
from penstock.mesh.v1.scheduler_pb2 import AttachRequest, AttachResponse
from penstock.mesh.v1.worker_pb2 import ExecuteRequest, ExecuteResponse
from penstock.proofs.hostile.ports import PortKind
from penstock.proofs.hostile.wire.grpc_call import framed

TIERS = ("edge", "auth", "queue", "scheduler", "worker", "routing", "batch", "envoy", "operator", "", "root")


@dataclass(frozen=True, slots=True)
class TierStream:
    """One bidirectional RPC between tiers."""

    path: str
    client: str  # tier that opens it
    server: PortKind
    request: Callable[..., Any]
    response: Callable[..., Any]

    @property
    def method(self) -> str:
        """Service and RPC, without the package."""
        return self.path.rpartition(".")[2]

    def hello(self, tier: str, instance_id: str) -> bytes:
        """Return a framed hello of the current protocol."""
        return framed(self.request(hello=hello_of(tier, instance_id)).SerializeToString())

    def kinds_of(self, messages: tuple[bytes, ...]) -> set[str]:
        """Return the kinds of frames in the server's messages, bundled ones included."""
        kinds = set()
        for message in messages:
            frame = self.response.FromString(message)  # type: ignore[attr-defined]  # a class of messages
            kinds |= {each.WhichOneof("frame") for each in (frame, *frame.more)}
        return kinds - {None}


MESH = "/penstock.mesh.v1."
TIER_STREAMS = (
    TierStream(f"{MESH}AdmissionService/Admit", "edge", PortKind.AUTH, AdmitRequest, AdmitResponse),
    TierStream(f"{MESH}QueueService/Submit", "edge", PortKind.QUEUE, SubmitRequest, SubmitResponse),
    TierStream(f"{MESH}QueueService/Dispatch", "scheduler", PortKind.QUEUE, DispatchRequest, DispatchResponse),
    TierStream(f"{MESH}SchedulerService/Attach", "worker", PortKind.SCHEDULER, AttachRequest, AttachResponse),
    TierStream(f"{MESH}WorkerService/Execute", "edge", PortKind.WORKER, ExecuteRequest, ExecuteResponse),
    TierStream(f"{MESH}ResponseStoreService/Keep", "edge", PortKind.AUTH, KeepRequest, KeepResponse),
    TierStream(f"{MESH}LineService/Run", "batch", PortKind.PROXY_GRPC, RunRequest, RunResponse),
    TierStream(
        f"{MESH}RegionService/Run", "edge", PortKind.PROXY_GRPC, RegionServiceRunRequest, RegionServiceRunResponse
    ),
    TierStream(f"{MESH}RegionQuotaService/Follow", "auth", PortKind.AUTH, FollowRequest, FollowResponse),
    TierStream(f"{MESH}RoutingService/WatchRegion", "edge", PortKind.ROUTING, WatchRegionRequest, WatchRegionResponse),
)
ADMIT = TIER_STREAMS[0]
SUBMIT = TIER_STREAMS[1]
