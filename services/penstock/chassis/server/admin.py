"""The Admin service of every process: snapshots and drain. Auth alone serves keys and tenants."""

import asyncio
import hmac
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import psutil
from google.protobuf.duration_pb2 import Duration

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument, PermissionDenied, Unimplemented
from penstock.chassis.lifecycle import current_stop, request_stop
from penstock.chassis.server.call_metrics import CallCounter
from penstock.chassis.server.interceptors import Body, Context, Continuation, guarded
from penstock.chassis.streams import endpoint
from penstock.chassis.streams.protocol import release
from penstock.v1 import admin_pb2 as pb
from penstock.v1.admin_pb2_grpc import AdminServicer

Figures = Callable[[], Mapping[str, float]]
Tables = Callable[[], Mapping[str, Any]]
Drain = Callable[[float | None], int]  # grace in s (None: the configured one) -> number of calls in flight

DEFAULT_WATCH_INTERVAL_S = 1.0
WATCH_INTERVAL_BOUNDS_S = (0.1, 60.0)
MAX_GRACE_S = 86_400.0
OPERATOR_METHOD_PREFIXES = ("/penstock.v1.Admin/", "/grpc.channelz.")


def process_figures() -> dict[str, float]:
    """Figures of the process itself, which every snapshot has."""
    process = psutil.Process()
    with process.oneshot():
        times = process.cpu_times()
        return {
            "cpu_seconds": times.user + times.system,
            "rss_bytes": process.memory_info().rss,
            "open_fds": process.num_fds(),
            "asyncio_tasks": len(asyncio.all_tasks()),
            "open_streams": endpoint.counters.open,
            "unknown_frames": endpoint.counters.unknown_frames,
            "out_of_range_frames": endpoint.counters.out_of_range_frames,
            "malformed_messages": endpoint.counters.malformed_messages,
            "uptime_seconds": time.time() - process.create_time(),
        }


class AdminService(AdminServicer):
    """Snapshots and drain of one process. `serving` admits operators alone, so that subclasses need no check."""

    def __init__(
        self,
        tier: str,
        instance_id: str,
        figures: Figures = dict,
        tables: Tables | None = None,
        drain: Drain | None = None,
        *,
        token: str = "",
    ) -> None:
        self.tier = tier
        self.instance_id = instance_id
        self.token = token
        self.calls = CallCounter()  # replaced by the server's own when it starts
        self._figures = figures
        self._tables = tables
        self._drain = drain or self._drain_process

    def snapshot(self) -> pb.Snapshot:
        figures = {**process_figures(), "calls": self.calls.in_flight, **self._figures()}
        found = pb.Snapshot(
            tier=self.tier,
            instance_id=self.instance_id,
            pid=os.getpid(),
            release=release(),
            draining=current_stop().is_requested,
            figures=figures,
        )
        if self._tables:
            found.tables.update(self._tables())
        return found

    def _drain_process(self, grace: float | None) -> int:
        request_stop("Admin.Drain", grace)
        return self.calls.in_flight

    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainResponse:
        grace = seconds_of(request.grace) if request.HasField("grace") else None
        if grace is not None and not 0 <= grace <= MAX_GRACE_S:
            raise InvalidArgument(f"grace must be 0 to {MAX_GRACE_S:.0f} s, not {grace} s", field="grace")
        return pb.DrainResponse(running=self._drain(grace))

    async def GetSnapshot(self, request: pb.GetSnapshotRequest, context: Any) -> pb.GetSnapshotResponse:
        return pb.GetSnapshotResponse(snapshot=self.snapshot())

    async def WatchSnapshot(
        self, request: pb.WatchSnapshotRequest, context: Any
    ) -> AsyncIterator[pb.WatchSnapshotResponse]:
        interval = watch_interval(request.interval) if request.HasField("interval") else DEFAULT_WATCH_INTERVAL_S
        while True:
            yield pb.WatchSnapshotResponse(snapshot=self.snapshot())
            await asyncio.sleep(interval)

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Any) -> pb.CreateKeyResponse:
        self._reject_not_auth()

    async def ListKeys(self, request: pb.ListKeysRequest, context: Any) -> pb.ListKeysResponse:
        self._reject_not_auth()

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Any) -> pb.RevokeKeyResponse:
        self._reject_not_auth()

    async def PutTenant(self, request: pb.PutTenantRequest, context: Any) -> pb.PutTenantResponse:
        self._reject_not_auth()

    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Any) -> pb.DeleteTenantResponse:
        self._reject_not_auth()

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Any) -> pb.ListTenantsResponse:
        self._reject_not_auth()

    def _reject_not_auth(self) -> NoReturn:
        text = f"keys and tenants are served by auth, this process is {self.tier}; call the Admin service of auth"
        raise Unimplemented(text, reason="NOT_AUTH")


def watch_interval(requested: Duration) -> float:
    """Return seconds between snapshots. Raises InvalidArgument outside the bounds."""
    interval = seconds_of(requested)
    low, high = WATCH_INTERVAL_BOUNDS_S
    if not low <= interval <= high:
        raise InvalidArgument(f"interval must be {low} to {high} s, not {interval} s", field="interval")
    return interval


@dataclass(frozen=True)
class OperatorInterceptor(grpc.aio.ServerInterceptor):
    """Restricts admin and channelz to operators: callers with the token, or from loopback if no token is set."""

    token: str = ""

    async def intercept_service(self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OPERATOR_METHOD_PREFIXES):
            return handler

        async def guard(context: Context, body: Body) -> Any:
            if not self.is_operator(context.peer(), dict(context.invocation_metadata() or ())):
                raise PermissionDenied(self._denial(), reason="ADMIN_ONLY")
            return await body()

        return guarded(handler, guard)

    def is_operator(self, peer: str, metadata: Mapping[str, str | bytes]) -> bool:
        if self.token:
            shown = str(metadata.get("authorization", ""))
            return hmac.compare_digest(shown.encode(), f"Bearer {self.token}".encode())
        return is_loopback(peer) and "x-forwarded-for" not in metadata  # not through a proxy on this host

    def _denial(self) -> str:
        if self.token:
            return "send metadata `authorization: Bearer TOKEN` with the token of PENSTOCK_ADMIN_TOKEN"
        return "only callers on loopback are served; set PENSTOCK_ADMIN_TOKEN to serve others"


def is_loopback(peer: str) -> bool:
    """Whether gRPC's name of a peer (ipv4:127.0.0.1:5000, ipv6:[::1]:5000, unix:...) is on this host."""
    return peer.startswith(("ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:", "unix:"))
