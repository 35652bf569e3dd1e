"""Failpoints: the kinds of frames at which a fault can be injected."""

from collections.abc import Iterator
from typing import Any

from penstock.faults.grpc.network import TO_CLIENT, TO_SERVER, Failpoint
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse
from penstock.mesh.v1.queue_pb2 import DispatchRequest, DispatchResponse, SubmitRequest, SubmitResponse
from penstock.mesh.v1.scheduler_pb2 import AttachRequest, AttachResponse
from penstock.mesh.v1.worker_pb2 import ExecuteRequest, ExecuteResponse
from penstock.v1.inference_pb2 import GenerateResponse, SessionRequest, SessionResponse

_FRAMES_BY_METHOD: dict[str, tuple[Any, Any]] = {
    "penstock.mesh.v1.AdmissionService/Admit": (AdmitRequest, AdmitResponse),
    "penstock.mesh.v1.QueueService/Submit": (SubmitRequest, SubmitResponse),
    "penstock.mesh.v1.QueueService/Dispatch": (DispatchRequest, DispatchResponse),
    "penstock.mesh.v1.SchedulerService/Attach": (AttachRequest, AttachResponse),
    "penstock.mesh.v1.WorkerService/Execute": (ExecuteRequest, ExecuteResponse),
    "penstock.v1.Inference/Session": (SessionRequest, SessionResponse),
    "penstock.v1.Inference/Generate": (None, GenerateResponse),
}
# A heartbeat concerns no request, and no tier sends `drain` yet.
_SKIPPED_FRAMES = ("heartbeat", "drain")

# An edge closes its streams without an end of the request side. The server releases the remaining state in any case.
_NEVER_SENT = frozenset(
    Failpoint(f"penstock.mesh.v1.{method}", TO_SERVER, "end")
    for method in ("AdmissionService/Admit", "QueueService/Submit", "WorkerService/Execute")
)


def _all_failpoints() -> Iterator[Failpoint]:
    for method, (request, response) in _FRAMES_BY_METHOD.items():
        for direction, message in ((TO_SERVER, request), (TO_CLIENT, response)):
            if message is None:
                yield Failpoint(method, direction, "")
                continue
            fields = message.DESCRIPTOR.oneofs_by_name["frame"].fields
            yield from (Failpoint(method, direction, each.name) for each in fields if each.name not in _SKIPPED_FRAMES)


FAILPOINTS = tuple(each for each in _all_failpoints() if each not in _NEVER_SENT)
# Failpoints of meshes in which several processes of auth share the partitions of tenants.
PARTITION_FAILPOINTS = tuple(each for each in FAILPOINTS if each.kind in {"owned_partitions", "not_owner"})
# Failpoints that most requests pass. Most faults are injected here, so that they are not wasted.
COMMON_FAILPOINTS = tuple(
    each
    for each in FAILPOINTS
    if each.kind
    in {
        *("reserve", "settle", "admitted", "settled", "enqueue", "withdraw", "queued", "leased", "place", "offer"),
        *("credit", "head", "started", "released", "expect", "start", "cancel", "step", "cancelled"),
        *("generate", "accepted", "delta", "finished"),
    }
)
