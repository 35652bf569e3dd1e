"""The testbed of the proof of regions: two whole meshes, tenants that both know, clients, and a progress line."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import grpc
import psutil
from rich.console import Console

from penstock.bench.cpu_wait import cpu_use_of
from penstock.bench.progress import ProgressFn, progress_reporter
from penstock.chassis.errors import error_from_rpc
from penstock.client import Client, RetryPolicy
from penstock.local_mesh.mesh import LocalMesh
from penstock.local_mesh.operator_channels import operator_channel
from penstock.local_mesh.plan import MeshOptions
from penstock.local_mesh.regions import LocalRegions, local_regions
from penstock.proofs.card import CardLine, ProofCard
from penstock.proofs.regions.issuer import TokenIssuer, token_issuer
from penstock.proofs.testbed.testbed import POLL_INTERVAL_S, SNAPSHOT_TIMEOUT_S, Testbed
from penstock.v1 import admin_pb2 as pb
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.region_pb2 import Region

if TYPE_CHECKING:
    from penstock.v1.admin_pb2_grpc import AdminAsyncStub  # a name that only the type stubs have

HOME, AWAY = "eu", "us"
NOT_HOME = "NOT_HOME"  # auth of a region whose tenants another region keeps
TENANTS_TIMEOUT_S = 20.0  # until each region knows a tenant
LINK_TIMEOUT_S = 30.0
# A proof ends when auth has given up the edges that died.
COMMON_SETTINGS = ("PENSTOCK_AUTH_EDGE_GRACE=8",)
# No request is rejected for load, so that every failure is the result of a fault.
NO_TARGETS = ("PENSTOCK_QUEUE_TTFT_INTERACTIVE=0", "PENSTOCK_QUEUE_TTFT_STANDARD=0")


@dataclass(slots=True, kw_only=True)
class PartResult:
    """The lines of one part, without its name. `void_reason`: as of a card."""

    lines: list[CardLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    void_reason: str = ""

    def add_to(self, card: ProofCard, part: str) -> None:
        card.lines += [replace(each, figure=f"{part}: {each.figure}") for each in self.lines]
        card.notes += [f"{part}: {each}" for each in self.notes]
        if self.void_reason:
            card.void_reason = "; ".join(filter(None, (card.void_reason, f"{part}: {self.void_reason}")))


@dataclass(frozen=True, slots=True)
class RegionsTestbed:
    local: LocalRegions
    issuer: TokenIssuer
    testbeds: Mapping[str, Testbed]  # by region; the client of each has the other region as failover
    report_progress: ProgressFn

    def mesh(self, region: str) -> LocalMesh:
        return self.local.meshes[region]

    def folders(self) -> dict[str, Path]:
        return {name: mesh.folder for name, mesh in self.local.meshes.items()}

    def client(
        self, region: str, tenant_id: str, *, has_failover: bool = False, retries: RetryPolicy | None = None
    ) -> Client:
        """Return a client of a tenant at the proxy of `region`."""
        others = [each.plan.proxy for name, each in self.local.meshes.items() if name != region]
        return Client(
            self.mesh(region).plan.proxy,
            failover=others if has_failover else (),
            api_key=self.issuer.token(tenant_id),
            retries=retries,
        )

    async def put_tenants(self, tenants: Sequence[pb.Tenant]) -> None:
        """Put the same tenants in each region that keeps its own, and wait until every region has them."""
        for name in self.local.meshes:
            async with self.admin(name, "auth") as admin:
                for tenant in tenants:
                    try:
                        await admin.PutTenant(pb.PutTenantRequest(tenant=tenant))
                    except grpc.aio.AioRpcError as error:
                        if name == HOME or error_from_rpc(error).reason != NOT_HOME:
                            raise
        names = {each.tenant_id for each in tenants}
        async with asyncio.timeout(TENANTS_TIMEOUT_S):
            for name in self.local.meshes:
                while not names <= await self._tenants_of(name):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(POLL_INTERVAL_S)

    async def _tenants_of(self, region: str) -> set[str]:
        async with self.admin(region, "auth") as admin:
            return {each.tenant_id for each in (await admin.ListTenants(pb.ListTenantsRequest())).tenants}

    @asynccontextmanager
    async def admin(self, region: str, tier: str) -> AsyncIterator["AdminAsyncStub"]:
        """Open the Admin service of the first process of a tier."""
        async with operator_channel(self.mesh(region).plan.processes_of(tier)[0].admin_address) as opened:
            yield AdminStub(opened)

    async def drain(self, region: str) -> None:
        async with self.admin(region, "routing") as admin:
            await admin.DrainRegion(pb.DrainRegionRequest(name=region), timeout=SNAPSHOT_TIMEOUT_S)

    async def restore(self, region: str) -> None:
        async with self.admin(region, "routing") as admin:
            await admin.RestoreRegion(pb.RestoreRegionRequest(name=region), timeout=SNAPSHOT_TIMEOUT_S)

    async def own_state(self, region: str) -> Region:
        """Return the state of a region as its own proxies have it."""
        async with self.admin(region, "routing") as admin:
            listed = await admin.ListRegions(pb.ListRegionsRequest(), timeout=SNAPSHOT_TIMEOUT_S)
        return next(each for each in listed.regions if each.own)

    async def wait_linked(self) -> None:
        """Wait until an edge of each region has its stream to the other one. Raises TimeoutError."""
        async with asyncio.timeout(LINK_TIMEOUT_S):
            for testbed in self.testbeds.values():
                while not await testbed.sum_figure("edge", "region_links_up"):  # noqa: ASYNC110  # another process
                    await asyncio.sleep(POLL_INTERVAL_S)


@asynccontextmanager
async def open_regions(
    options: MeshOptions,
    console: Console,
    *,
    round_trip_s: float,
    settings: Sequence[str] = (),
    workers: Mapping[str, int] = MappingProxyType({}),
) -> AsyncIterator[RegionsTestbed]:
    """Start two meshes on free ports, with one process of each tier beside the workers of `options` or `workers`."""
    with progress_reporter(console) as report_progress, token_issuer() as issuer:
        report_progress("starting two regions")
        every = (*COMMON_SETTINGS, *issuer.settings, *settings, *options.settings)
        own = replace(options, base_port=0, envoy=True, envoys=1, edges=1, auths=1, queues=1, schedulers=1)
        own = replace(own, store="sqlite", batches=0, settings=every)
        async with local_regions(own, (HOME, AWAY), round_trip_s=round_trip_s, workers=workers) as local:
            near, far = (local.meshes[name] for name in (HOME, AWAY))
            async with (
                Client(near.plan.proxy, failover=(far.plan.proxy,), api_key=near.api_key) as at_home,
                Client(far.plan.proxy, failover=(near.plan.proxy,), api_key=far.api_key) as elsewhere,
            ):
                testbeds = {
                    name: Testbed(mesh, client, report_progress)
                    for name, mesh, client in ((HOME, near, at_home), (AWAY, far, elsewhere))
                }
                testbed = RegionsTestbed(local, issuer, testbeds, report_progress)
                await testbed.wait_linked()
                yield testbed
            report_progress("draining both regions")


class CpuMeter:
    """CPU use of the processes of a mesh since the creation of the meter."""

    def __init__(self, mesh: LocalMesh) -> None:
        own = [child.process.pid for child in mesh.processes.children]
        self._pids = [*own, *(each.pid for pid in own for each in psutil.Process(pid).children(recursive=True))]
        self._began = cpu_use_of(self._pids)

    def wait_share(self) -> float:
        """Return the share of the runnable time that was spent without a core."""
        return cpu_use_of(self._pids).since(self._began).wait_share


async def first_served(testbed: Testbed, timeout_s: float) -> float:
    """Return the s until an edge of a restarted region has started a request; `timeout_s` if none does."""
    began_at = time.monotonic()
    while (waited := time.monotonic() - began_at) < timeout_s:
        if await testbed.sum_figure("edge", "requests_started"):
            return waited
        await asyncio.sleep(0.02)
    return timeout_s


async def residue_of(testbed: RegionsTestbed) -> dict[str, float]:
    """Return the figures that are not zero at rest, by region and process."""
    found: dict[str, float] = {}
    for name, each in testbed.testbeds.items():
        found |= {f"{name} {figure}": value for figure, value in (await each.residue()).items()}
    return found
