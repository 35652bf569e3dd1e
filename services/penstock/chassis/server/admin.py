"""The Admin service of every process: snapshots and drain. Auth alone serves keys and tenants.

It is served by the operators' listener (`chassis/operators/`), which admits operators alone.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NoReturn

import psutil
from google.protobuf.duration_pb2 import Duration

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument, Unimplemented
from penstock.chassis.lifecycle import current_stop, request_stop
from penstock.chassis.server.call_metrics import CallCounter
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
    """Snapshots and drain of one process. Its listener admits operators alone, so that subclasses need no check."""

    def __init__(
        self,
        tier: str,
        instance_id: str,
        figures: Figures = dict,
        tables: Tables | None = None,
        drain: Drain | None = None,
    ) -> None:
        self.tier = tier
        self.instance_id = instance_id
        self.calls = CallCounter()  # replaced by that of the main server when it starts
        self.access_figures: Figures = dict  # replaced by the operators' listener when it starts
        self._figures = figures
        self._tables = tables
        self._drain = drain or self._drain_process

    def snapshot(self) -> pb.Snapshot:
        figures = {**process_figures(), "calls": self.calls.in_flight, **self.access_figures(), **self._figures()}
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

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        text = f"edges explain requests, not {self.tier}; ask an edge's Admin service"
        raise Unimplemented(text, reason="NOT_EDGE")

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Any) -> pb.CreateKeyResponse:
        self._reject_not_auth()

    async def ListKeys(self, request: pb.ListKeysRequest, context: Any) -> pb.ListKeysResponse:
        self._reject_not_auth()

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Any) -> pb.RevokeKeyResponse:
        self._reject_not_auth()

    async def PutKeyLimits(self, request: pb.PutKeyLimitsRequest, context: Any) -> pb.PutKeyLimitsResponse:
        self._reject_not_auth()

    async def PutTenant(self, request: pb.PutTenantRequest, context: Any) -> pb.PutTenantResponse:
        self._reject_not_auth()

    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Any) -> pb.DeleteTenantResponse:
        self._reject_not_auth()

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Any) -> pb.ListTenantsResponse:
        self._reject_not_auth()

    async def PutPrice(self, request: pb.PutPriceRequest, context: Any) -> pb.PutPriceResponse:
        self._reject_not_auth()

    async def ListPrices(self, request: pb.ListPricesRequest, context: Any) -> pb.ListPricesResponse:
        self._reject_not_auth()

    async def DeletePrice(self, request: pb.DeletePriceRequest, context: Any) -> pb.DeletePriceResponse:
        self._reject_not_auth()

    async def PutRoute(self, request: pb.PutRouteRequest, context: Any) -> pb.PutRouteResponse:
        self._reject_not_auth()

    async def ListRoutes(self, request: pb.ListRoutesRequest, context: Any) -> pb.ListRoutesResponse:
        self._reject_not_auth()

    async def RollBackRoute(self, request: pb.RollBackRouteRequest, context: Any) -> pb.RollBackRouteResponse:
        self._reject_not_auth()

    async def DeleteRoute(self, request: pb.DeleteRouteRequest, context: Any) -> pb.DeleteRouteResponse:
        self._reject_not_auth()

    async def QueryUsage(self, request: pb.QueryUsageRequest, context: Any) -> AsyncIterator[pb.QueryUsageResponse]:
        self._reject_not_auth()
        yield  # it is a stream

    async def ExportLedger(
        self, request: pb.ExportLedgerRequest, context: Any
    ) -> AsyncIterator[pb.ExportLedgerResponse]:
        self._reject_not_auth()
        yield  # as above

    async def ListRegions(self, request: pb.ListRegionsRequest, context: Any) -> pb.ListRegionsResponse:
        self._reject_not_routing()

    async def DrainRegion(self, request: pb.DrainRegionRequest, context: Any) -> pb.DrainRegionResponse:
        self._reject_not_routing()

    async def RestoreRegion(self, request: pb.RestoreRegionRequest, context: Any) -> pb.RestoreRegionResponse:
        self._reject_not_routing()

    async def PutRegionWeight(self, request: pb.PutRegionWeightRequest, context: Any) -> pb.PutRegionWeightResponse:
        self._reject_not_routing()

    def _reject_not_routing(self) -> NoReturn:
        text = f"routing directs calls to regions, not {self.tier}; call routing's Admin service"
        raise Unimplemented(text, reason="NOT_ROUTING")

    def _reject_not_auth(self) -> NoReturn:
        text = f"auth serves keys, tenants, prices, routes and usage, not {self.tier}; call auth's Admin service"
        raise Unimplemented(text, reason="NOT_AUTH")


def watch_interval(requested: Duration) -> float:
    """Return seconds between snapshots. Raises InvalidArgument outside the bounds."""
    interval = seconds_of(requested)
    low, high = WATCH_INTERVAL_BOUNDS_S
    if not low <= interval <= high:
        raise InvalidArgument(f"interval must be {low} to {high} s, not {interval} s", field="interval")
    return interval
