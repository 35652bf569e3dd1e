"""The table of RPCs and the tiers that may call each. An RPC without an entry is refused."""

from collections.abc import Iterator, Mapping

from penstock.chassis.security.identity import TIERS

DOOR_TIERS = frozenset({"envoy"})  # may send requests of clients to the doors of an edge, over gRPC and HTTP
OPERATOR_TIERS = frozenset({"operator"})
ALL_TIERS = frozenset(TIERS)
# RPCs between processes of two regions, by the tier of the caller. Envoy carries them through its region door alone.
# No client may call them.
REGION_RPCS: Mapping[str, str] = {
    "penstock.mesh.v1.RegionService/Run": "edge",
    "penstock.mesh.v1.RegionQuotaService/Follow": "auth",
}


def _entries() -> Iterator[tuple[str, frozenset[str]]]:
    mesh = {
        "AdmissionService": {"Admit": "edge"},
        "ResponseStoreService": {"Keep": "edge"},
        "BatchService": {"UploadFile": "edge", "ReadFile": "edge", "Call": "edge"},
        "LineService": {"Run": "batch"},
        "RoutingService": {"WatchRegion": "edge"},
        "QueueService": {"Submit": "edge", "Dispatch": "scheduler"},
        "SchedulerService": {"Attach": "worker"},
        "WorkerService": {"Execute": "edge", "GetModelCard": "edge"},
    }
    for service, callers in mesh.items():
        for rpc, tier in callers.items():
            yield f"penstock.mesh.v1.{service}/{rpc}", frozenset({tier})
    for rpc, tier in REGION_RPCS.items():
        yield rpc, DOOR_TIERS | {tier}
    for rpc in ("IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics"):
        yield f"externalscaler.ExternalScaler/{rpc}", frozenset({"keda"})
    for rpc in ("Generate", "Session", "CountTokens", "ListModels", "Embed"):
        yield f"penstock.v1.Inference/{rpc}", DOOR_TIERS
    for rpc in (
        *("UploadFile", "GetFile", "ListFiles", "ReadFile", "DeleteFile"),
        *("CreateBatch", "GetBatch", "ListBatches", "CancelBatch", "RunLines"),
    ):
        yield f"penstock.v1.Batches/{rpc}", DOOR_TIERS
    for rpc in ("GetSnapshot", "WatchSnapshot", "Explain", "Drain", "CreateKey", "ListKeys", "RevokeKey"):
        yield f"penstock.v1.Admin/{rpc}", OPERATOR_TIERS
    for rpc in (
        *("PutTenant", "DeleteTenant", "ListTenants", "PutKeyLimits", "PutPrice", "ListPrices", "DeletePrice"),
        *("QueryUsage", "ExportLedger", "PutRoute", "ListRoutes", "RollBackRoute", "DeleteRoute"),
        *("ListRegions", "DrainRegion", "RestoreRegion", "PutRegionWeight"),
    ):
        yield f"penstock.v1.Admin/{rpc}", OPERATOR_TIERS
    for rpc in ("StreamAggregatedResources", "DeltaAggregatedResources"):
        yield f"envoy.service.discovery.v3.AggregatedDiscoveryService/{rpc}", DOOR_TIERS
    yield "envoy.service.ext_proc.v3.ExternalProcessor/Process", DOOR_TIERS
    for rpc in ("Check", "List", "Watch"):
        yield f"grpc.health.v1.Health/{rpc}", ALL_TIERS
    yield "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", OPERATOR_TIERS
    for rpc in ("GetTopChannels", "GetServers", "GetServer", "GetServerSockets", "GetChannel", "GetSubchannel"):
        yield f"grpc.channelz.v1.Channelz/{rpc}", OPERATOR_TIERS
    yield "grpc.channelz.v1.Channelz/GetSocket", OPERATOR_TIERS


PERMISSIONS: Mapping[str, frozenset[str]] = dict(_entries())  # by `package.Service/Rpc`: the tiers that may call it


def is_allowed(tier: str, method: str) -> bool:
    """Whether a process of `tier` may call `method`, which is `package.Service/Rpc` with or without a leading slash."""
    return tier in PERMISSIONS.get(method.removeprefix("/"), frozenset())


def is_public(method: str) -> bool:
    """Whether clients may call `method`, directly or through Envoy."""
    return method not in REGION_RPCS and bool(callers_of(method) & DOOR_TIERS)


def callers_of(method: str) -> frozenset[str]:
    """Return the tiers that may call `method`; empty if it has no entry."""
    return PERMISSIONS.get(method.removeprefix("/"), frozenset())
