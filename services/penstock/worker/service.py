"""WorkerService: frames of edges to the front and back. No policy."""

from collections.abc import AsyncIterator
from typing import Any

from penstock.chassis.streams import accepted
from penstock.mesh.v1 import worker_pb2 as pb
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceServicer
from penstock.worker.front import Front


class WorkerService(WorkerServiceServicer):
    def __init__(self, front: Front, *, stream_frames: int) -> None:
        self._front = front
        self._stream_frames = stream_frames

    async def Execute(  # type: ignore[override]  # reads and writes on its context, and yields nothing
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Any
    ) -> None:
        self._front.check_open()
        async with accepted(context, pb.ExecuteResponse, self._front.hello, capacity=self._stream_frames) as peer:
            stream = self._front.open(peer)
            try:
                async for frame in peer:
                    self._front.hear_edge(stream, frame)
            finally:
                self._front.close(stream)

    async def GetModelCard(self, request: pb.GetModelCardRequest, context: Any) -> pb.GetModelCardResponse:
        return pb.GetModelCardResponse(card=self._front.card())
