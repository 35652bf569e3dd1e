"""WorkerService: passes frames between edges and the worker's runtime. Holds no policy."""

from collections.abc import AsyncIterator
from typing import Any

from penstock.chassis.streams.link import accept_stream
from penstock.mesh.v1 import worker_pb2 as pb
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceServicer
from penstock.worker.runtime import WorkerRuntime


class WorkerService(WorkerServiceServicer):
    def __init__(self, runtime: WorkerRuntime, *, max_outbox_frames: int) -> None:
        self._runtime = runtime
        self._max_outbox_frames = max_outbox_frames

    async def Execute(  # type: ignore[override]  # reads and writes on its context and yields nothing
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Any
    ) -> None:
        self._runtime.check_accepts_streams()
        async with accept_stream(
            context, pb.ExecuteResponse, self._runtime.hello, capacity=self._max_outbox_frames, tiers=("edge",)
        ) as peer:
            stream = self._runtime.open_stream(peer)
            try:
                async for frame in peer:
                    self._runtime.on_edge_frame(stream, frame)
            finally:
                self._runtime.close_stream(stream)

    async def GetModelCard(self, request: pb.GetModelCardRequest, context: Any) -> pb.GetModelCardResponse:
        return pb.GetModelCardResponse(card=self._runtime.card())
