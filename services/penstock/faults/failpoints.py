"""The places of the protocol at which a world may break: every frame that one tier sends another while it works."""

from collections.abc import Iterator
from typing import Any

from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Point
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse
from penstock.mesh.v1.queue_pb2 import DispatchRequest, DispatchResponse, SubmitRequest, SubmitResponse
from penstock.mesh.v1.scheduler_pb2 import AttachRequest, AttachResponse
from penstock.mesh.v1.worker_pb2 import ExecuteRequest, ExecuteResponse
from penstock.v1.inference_pb2 import GenerateResponse, SessionRequest, SessionResponse

_STREAMS: dict[str, tuple[Any, Any]] = {
    "penstock.mesh.v1.AdmissionService/Admit": (AdmitRequest, AdmitResponse),
    "penstock.mesh.v1.QueueService/Submit": (SubmitRequest, SubmitResponse),
    "penstock.mesh.v1.QueueService/Dispatch": (DispatchRequest, DispatchResponse),
    "penstock.mesh.v1.SchedulerService/Attach": (AttachRequest, AttachResponse),
    "penstock.mesh.v1.WorkerService/Execute": (ExecuteRequest, ExecuteResponse),
    "penstock.v1.Inference/Session": (SessionRequest, SessionResponse),
    "penstock.v1.Inference/Generate": (None, GenerateResponse),
}
_IDLE = ("heartbeat", "drain")  # the first says nothing of any request, the second is nobody's to send yet

# An edge closes what it opened without a word: whoever served it gives back what is left either way.
_UNSAID = frozenset(
    Point(f"penstock.mesh.v1.{method}", TO_SERVER, "end")
    for method in ("AdmissionService/Admit", "QueueService/Submit", "WorkerService/Execute")
)


def _points() -> Iterator[Point]:
    for method, sides in _STREAMS.items():
        for way, message in ((TO_SERVER, sides[0]), (TO_CLIENT, sides[1])):
            if message is None:
                yield Point(method, way, "")
                continue
            fields = message.DESCRIPTOR.oneofs_by_name["frame"].fields
            yield from (Point(method, way, each.name) for each in fields if each.name not in _IDLE)


POINTS = tuple(each for each in _points() if each not in _UNSAID)
# What most requests come by.
BUSY = tuple(
    each
    for each in POINTS
    if each.kind
    in {
        *("reserve", "settle", "admitted", "settled", "enqueue", "withdraw", "queued", "leased", "place", "offer"),
        *("credit", "head", "started", "released", "expect", "start", "cancel", "step", "cancelled"),
        *("generate", "accepted", "delta", "finished"),
    }
)
