"""The testbed of a live proof: its own mesh, a client of all edges, and a progress line."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
from rich.console import Console

from penstock.bench.drivers.grpc import GrpcDriver
from penstock.bench.progress import ProgressFn, progress_reporter
from penstock.client import Client
from penstock.local_mesh.launch import TransformPlan, local_mesh
from penstock.local_mesh.mesh import LocalMesh
from penstock.local_mesh.operator_channels import operator_channel
from penstock.local_mesh.plan import FIGURES_ZERO_AT_REST, MeshOptions
from penstock.proofs.testbed.clients.load import ClosedLoopLoad
from penstock.proofs.testbed.faults.tcp_relays import TcpRelays
from penstock.v1.admin_pb2 import GetSnapshotRequest, Snapshot
from penstock.v1.admin_pb2_grpc import AdminStub

REST_TIMEOUT_S = 60.0  # s; above the grace that auth gives an edge that does not return
POLL_INTERVAL_S = 0.1  # s
SNAPSHOT_TIMEOUT_S = 20.0  # s; a connection may take several attempts on a busy machine

ENVOY_REQUESTS = "http.front.downstream_rq_active"  # requests that an Envoy carries

COMMON_SETTINGS = (
    "PENSTOCK_AUTH_EDGE_GRACE=8",  # s; a proof ends when auth has given up the edges that died
    # No request is rejected for load, so that every failure is the result of a fault.
    "PENSTOCK_QUEUE_TTFT_INTERACTIVE=0",
    "PENSTOCK_QUEUE_TTFT_STANDARD=0",
)


@dataclass(frozen=True, slots=True)
class Testbed:
    mesh: LocalMesh
    client: Client
    report_progress: ProgressFn

    @property
    def driver(self) -> GrpcDriver:
        """A driver of the client, whose transcripts have Unix times."""
        return GrpcDriver([self.client], time.time)

    async def figures_of(self, address: str) -> dict[str, float]:
        """Return the figures of the process whose Admin service is at `address`."""
        return dict((await self._snapshot(address)).figures)

    async def instance_id(self, address: str) -> str:
        return (await self._snapshot(address)).instance_id

    async def sum_figure(self, tier: str, name: str) -> float:
        return sum([(await self.figures_of(each.admin_address))[name] for each in self.mesh.plan.processes_of(tier)])

    async def residue(self) -> dict[str, float]:
        """Wait up to 60 s for the mesh to be at rest; return the figures that are not zero."""
        give_up_at = time.monotonic() + REST_TIMEOUT_S
        while (residue := await self._figures_not_zero()) and time.monotonic() < give_up_at:
            self.report_progress(f"waiting for figures to be zero: {residue}")
            await asyncio.sleep(POLL_INTERVAL_S)
        return residue

    async def _snapshot(self, address: str) -> Snapshot:
        async with operator_channel(address) as to_process:
            response = await AdminStub(to_process).GetSnapshot(
                GetSnapshotRequest(), wait_for_ready=True, timeout=SNAPSHOT_TIMEOUT_S
            )
        return response.snapshot

    async def _figures_not_zero(self) -> dict[str, float]:
        residue: dict[str, float] = {}
        for child in self.mesh.processes.children:
            spec = child.spec
            is_envoy = spec.tier == "envoy"
            figures = await (_envoy_figures(spec.admin) if is_envoy else self.figures_of(spec.admin_address))
            names = (ENVOY_REQUESTS,) if is_envoy else FIGURES_ZERO_AT_REST.get(spec.tier, ())
            residue |= {f"{spec.name} {name}": figures[name] for name in names if figures[name]}
        return residue


async def _envoy_figures(admin: str) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=f"http://{admin}") as client:
        response = await client.get("/stats", params={"filter": f"^{ENVOY_REQUESTS}$", "format": "json"})
    return {each["name"]: each["value"] for each in response.json()["stats"]}


@asynccontextmanager
async def open_testbed(
    options: MeshOptions,
    console: Console,
    *,
    settings: tuple[str, ...] = (),
    transform_plan: TransformPlan | None = None,
    relays: TcpRelays | None = None,
    envoys: int = 0,
) -> AsyncIterator[Testbed]:
    """Start a mesh by `options`, except for free ports, further `settings` and `envoys` Envoys.

    The client connects to the edges. With `relays`, all connections of the processes and the client use these;
    otherwise `transform_plan` may change the plan of the mesh.
    """
    every = (*COMMON_SETTINGS, *settings, *options.settings)
    own = replace(options, base_port=0, envoy=bool(envoys), envoys=max(1, envoys), settings=every)
    with progress_reporter(console) as report_progress:
        report_progress("starting a mesh")
        async with local_mesh(own, transform_plan=relays.insert_relays if relays else transform_plan) as mesh:
            gc.collect()  # frees the connections of the closed channels that watched the start
            addresses = relays.client_addresses if relays else [each.address for each in mesh.plan.processes_of("edge")]
            async with Client(*addresses, api_key=mesh.api_key) as client:
                yield Testbed(mesh, client, report_progress)
            report_progress("draining the mesh")


@asynccontextmanager
async def under_load(load: ClosedLoopLoad) -> AsyncIterator[None]:
    """Run `load` beside the block; afterwards wait for its active requests."""
    running = asyncio.create_task(load.run())
    try:
        yield
    finally:
        load.stop()
        await running


async def wait_for_tokens(load: ClosedLoopLoad, tokens: int) -> None:
    """Wait until clients have received `tokens` more."""
    target = load.tokens_received + tokens
    while load.tokens_received < target:  # noqa: ASYNC110  # the load has no event for a number of tokens
        await asyncio.sleep(POLL_INTERVAL_S)
