"""Bytes that are no message, for every method of every port: they end their call with a clear status.

Bytes that the libraries of protobuf and gRPC accept against their specifications are left out: the field number 0, and
flags of a message other than 0 and 1.
"""

from collections.abc import Iterator

from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase, call_outcome, succeeded
from penstock.proofs.hostile.corpus.grpc_requests import key_headers
from penstock.proofs.hostile.ports import GRPC_DOORS, Port, PortKind
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire.grpc_call import call, framed
from penstock.proofs.hostile.wire.http2 import Headers

DOOR_METHODS = (
    "/penstock.v1.Inference/Generate",
    "/penstock.v1.Inference/CountTokens",
    "/penstock.v1.Inference/Embed",
    "/penstock.v1.Inference/ListModels",
    "/penstock.v1.Inference/Session",
    *(f"/penstock.v1.Batches/{name}" for name in ("UploadFile", "GetFile", "ListFiles", "ReadFile", "DeleteFile")),
    *(f"/penstock.v1.Batches/{name}" for name in ("CreateBatch", "GetBatch", "ListBatches", "CancelBatch", "RunLines")),
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
)
XDS_METHODS = (
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
)
INNER_METHODS = {
    PortKind.AUTH: (
        *("/penstock.mesh.v1.AdmissionService/Admit", "/penstock.mesh.v1.ResponseStoreService/Keep"),
        *("/penstock.mesh.v1.RegionQuotaService/Follow", "/penstock.v1.Admin/CreateKey"),
    ),
    PortKind.QUEUE: ("/penstock.mesh.v1.QueueService/Submit", "/penstock.mesh.v1.QueueService/Dispatch"),
    PortKind.SCHEDULER: ("/penstock.mesh.v1.SchedulerService/Attach",),
    PortKind.WORKER: ("/penstock.mesh.v1.WorkerService/Execute", "/penstock.mesh.v1.WorkerService/GetModelCard"),
    PortKind.ROUTING: (*XDS_METHODS, "/penstock.mesh.v1.RoutingService/WatchRegion"),
    PortKind.BATCH: tuple(f"/penstock.mesh.v1.BatchService/{name}" for name in ("UploadFile", "ReadFile", "Call")),
    # Of an edge, for the batch tier and for edges of other regions.
    PortKind.PROXY_GRPC: ("/penstock.mesh.v1.LineService/Run", "/penstock.mesh.v1.RegionService/Run"),
}
COMPRESSED = 1  # flag of a message; gRPC demands INTERNAL if the call has no encoding
TOO_LONG = 17 << 20  # bytes, announced and never sent


def malformed_bodies() -> dict[str, bytes]:
    """Return bodies of a call, by the fault of each."""
    messages = {
        "varint without its end": b"\x08\xff\xff\xff",
        "three bytes of 0xff": b"\xff\xff\xff",
        "varint of 11 bytes": b"\x08" + b"\xff" * 10 + b"\x01",
        "wire type 7": b"\x0f\x01",
        "text longer than the message": b"\x0a\x7fabc",
        "text of 2**31 bytes announced": b"\x0a\xff\xff\xff\xff\x07abc",
        "end of a group without a start": b"\x0c",
        "group without an end": b"\x0b\x08\x01",
        "groups nested 200 deep": b"\x0b" * 200 + b"\x0c" * 199,
        "fixed64 of 3 bytes": b"\x09abc",
        "4 KiB of noise": bytes((number * 167 + 13) % 256 | 0x80 for number in range(4096)),
    }
    bodies = {name: framed(message) for name, message in messages.items()}
    return bodies | {
        "compressed without an encoding": framed(b"\x78\x9c\x03\x00", flag=COMPRESSED),
        "message shorter than its length": framed(b"abc", length=64),
        "half a prefix": b"\x00\x00",
        "length beyond the limit": framed(b"abc", length=TOO_LONG),
    }


def malformed_message_cases(target: HostileTarget) -> Iterator[HostileCase]:
    for port in target.ports_of(*GRPC_DOORS):
        for method in DOOR_METHODS:
            yield from _cases(port, method, key_headers(target))
    for port in target.ports_of(*INNER_METHODS):
        for method in INNER_METHODS[port.kind]:
            yield from _cases(port, method, ())


def _cases(port: Port, method: str, headers: Headers) -> Iterator[HostileCase]:
    for name, body in malformed_bodies().items():
        yield _case(f"{method.rpartition('.')[2]}: {name}", port, method, headers, body)


def _case(name: str, port: Port, method: str, headers: Headers, body: bytes) -> HostileCase:
    async def send() -> CaseOutcome:
        result = await call(port.endpoint, method, body, headers=headers)
        # The parser of xDS reads some of these bytes as a request of no known type, which xDS ignores.
        accepted = bool(result.messages) if port.kind is PortKind.ROUTING else succeeded(result)
        return call_outcome(result, accepted=accepted, may_be_internal=body[0] == COMPRESSED)

    return HostileCase(group="malformed messages", name=name, port=port, send=send)
