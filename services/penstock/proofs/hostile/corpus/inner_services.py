"""Services that a stranger must not reach: those of operators on any port, and those between tiers at the doors.

A service counts as reached if it judges the arguments. `Drain` and the changes of keys have arguments that no process
accepts, so that a mesh which lets an attacker reach them survives the proof.
"""

from collections.abc import Iterator

from google.protobuf.duration_pb2 import Duration

from penstock.mesh.v1.queue_pb2 import SubmitRequest
from penstock.proofs.hostile.corpus.case import CaseOutcome, HostileCase, call_outcome, reached_handler
from penstock.proofs.hostile.corpus.malformed_messages import INNER_METHODS
from penstock.proofs.hostile.ports import GRPC_DOORS, INNER, PROXY_DOORS, Port, PortKind
from penstock.proofs.hostile.target import HostileTarget
from penstock.proofs.hostile.wire.grpc_call import call, framed
from penstock.proofs.hostile.wire.http2 import Headers
from penstock.v1.admin_pb2 import DrainRequest
from penstock.v1.stream_pb2 import Hello

ADMIN = "/penstock.v1.Admin/"
WRONG_DRAIN = DrainRequest(grace=Duration(seconds=-1)).SerializeToString()
LIST_SERVICES = b"\x3a\x01*"  # field 7 of a reflection request: list_services
OPERATOR_METHODS = {
    **dict.fromkeys(
        (f"{ADMIN}{name}" for name in ("GetSnapshot", "WatchSnapshot", "Explain", "ListKeys", "ListTenants")), b""
    ),
    **dict.fromkeys((f"{ADMIN}{name}" for name in ("QueryUsage", "ExportLedger")), b""),
    **dict.fromkeys((f"{ADMIN}{name}" for name in ("CreateKey", "RevokeKey", "PutTenant", "DeleteTenant")), b""),
    **dict.fromkeys((f"{ADMIN}{name}" for name in ("PutKeyLimits", "PutPrice", "ListPrices", "DeletePrice")), b""),
    **dict.fromkeys((f"{ADMIN}{name}" for name in ("PutRoute", "ListRoutes", "RollBackRoute", "DeleteRoute")), b""),
    **dict.fromkeys((f"{ADMIN}{name}" for name in ("ListRegions", "RestoreRegion", "PutRegionWeight")), b""),
    f"{ADMIN}DrainRegion": b"",
    f"{ADMIN}Drain": WRONG_DRAIN,
    **dict.fromkeys((f"/grpc.channelz.v1.Channelz/{name}" for name in ("GetTopChannels", "GetServers")), b""),
    "/grpc.channelz.v1.Channelz/GetSocket": b"\x08\x01",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": LIST_SERVICES,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": LIST_SERVICES,
}
SCALER_METHODS = tuple(
    f"/externalscaler.ExternalScaler/{name}" for name in ("IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics")
)
PICKER_METHODS = ("/envoy.service.ext_proc.v3.ExternalProcessor/Process",)
FORGERIES: dict[str, Headers] = {
    "as a stranger": (),
    "with a wrong token": [("authorization", "Bearer 0000")],
    "as a caller on loopback": [("x-forwarded-for", "127.0.0.1"), ("x-envoy-internal", "true")],
}
HELLO = SubmitRequest(hello=Hello(protocol=1, tier="edge", instance_id="edge-1")).SerializeToString()


def inner_service_cases(target: HostileTarget) -> Iterator[HostileCase]:
    doors = target.ports_of(*GRPC_DOORS)
    for port in doors:
        for forgery, headers in FORGERIES.items():
            for method, message in OPERATOR_METHODS.items():
                yield _case("operators' services", forgery, port, method, message, headers=headers)
    for port in target.ports_of(*INNER, PortKind.HEALTH):
        for method, message in OPERATOR_METHODS.items():
            yield _case("operators' services", "as a stranger", port, method, message)
    for port in [*doors, *target.ports_of(*PROXY_DOORS, PortKind.CHECKS)]:
        for methods in (*INNER_METHODS.values(), SCALER_METHODS, PICKER_METHODS):
            for method in methods:
                yield _case("services between tiers", "at a door", port, method, HELLO)
    for port in target.ports_of(*PROXY_DOORS):
        method = "/penstock.v1.Inference/ListModels"
        yield _case("services between tiers", "at a door for Envoy", port, method)


def _case(
    group: str, forgery: str, port: Port, method: str, message: bytes = b"", *, headers: Headers = ()
) -> HostileCase:
    async def send() -> CaseOutcome:
        result = await call(port.endpoint, method, framed(message), headers=headers)
        return call_outcome(result, accepted=reached_handler(result))

    return HostileCase(group=group, name=f"{method[1:]} {forgery}", port=port, send=send)
