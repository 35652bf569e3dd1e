"""What every proof stands on: a mesh of its own, a client of all its edges, and a line that says what happens."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
from rich.console import Console

from penstock.bench.progress import ProgressFn, progress_reporter
from penstock.chassis.channels import channel
from penstock.client import Client
from penstock.local_mesh.mesh import LocalMesh, local_mesh
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.testbed.load import ClosedLoopLoad, Loads
from penstock.proofs.testbed.tcp_relays import TcpRelays
from penstock.v1.admin_pb2 import GetSnapshotRequest, Snapshot
from penstock.v1.admin_pb2_grpc import AdminStub

REST_TIMEOUT_S = 60.0  # s; above the grace that auth gives an edge that stays away
POLL_INTERVAL_S = 0.1  # s

ENVOY_REQUESTS = "http.front.downstream_rq_active"  # that an Envoy still carries

# What must be back at zero when nothing runs, by tier.
FIGURES_ZERO_AT_REST = {
    "edge": ("active_requests", "reservations_open", "unread_bytes"),
    "auth": ("reservations", "reserved_tokens", "concurrent_requests"),
    "queue": ("waiting", "waiting_tokens", "offered"),
    "scheduler": ("leases", "promised_blocks"),
    "worker": ("running", "waiting", "kv_blocks_used", "leases_expected", "leases_running", "parked"),
    "routing": (),
    "envoy": (ENVOY_REQUESTS,),
}

COMMON_SETTINGS = (
    "PENSTOCK_AUTH_EDGE_GRACE=8",  # s; a proof ends when auth has given up the edges that died
    # Nothing is refused for load: what is lost is to be told from what is not let in.
    "PENSTOCK_QUEUE_TTFT_INTERACTIVE=0",
    "PENSTOCK_QUEUE_TTFT_STANDARD=0",
)


@dataclass(frozen=True, slots=True)
class Testbed:
    mesh: LocalMesh
    client: Client
    report_progress: ProgressFn

    async def figures_of(self, address: str) -> dict[str, float]:
        return dict((await self._snapshot(address)).figures)

    async def instance_id(self, address: str) -> str:
        return (await self._snapshot(address)).instance_id

    async def sum_figure(self, tier: str, name: str) -> float:
        return sum([(await self.figures_of(each.address))[name] for each in self.mesh.plan.processes_of(tier)])

    async def residue(self) -> dict[str, float]:
        """What processes still hold when they should hold nothing, after a while for them to come to rest."""
        give_up_at = time.monotonic() + REST_TIMEOUT_S
        while (held := await self._figures_not_zero()) and time.monotonic() < give_up_at:
            self.report_progress(f"coming to rest: {held}")
            await asyncio.sleep(POLL_INTERVAL_S)
        return held

    async def _snapshot(self, address: str) -> Snapshot:
        async with channel(address) as to_process:
            return (await AdminStub(to_process).GetSnapshot(GetSnapshotRequest())).snapshot

    async def _figures_not_zero(self) -> dict[str, float]:
        held: dict[str, float] = {}
        for child in self.mesh.processes.children:
            is_envoy, spec = child.spec.tier == "envoy", child.spec
            figures_of = await (_envoy_figures(spec.admin) if is_envoy else self.figures_of(spec.address))
            names = FIGURES_ZERO_AT_REST[spec.tier]
            held |= {f"{child.spec.name} {name}": figures_of[name] for name in names if figures_of[name]}
        return held


async def _envoy_figures(admin: str) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=f"http://{admin}") as client:
        answer = await client.get("/stats", params={"filter": f"^{ENVOY_REQUESTS}$", "format": "json"})
    return {each["name"]: each["value"] for each in answer.json()["stats"]}


@asynccontextmanager
async def open_testbed(
    options: MeshOptions,
    console: Console,
    *,
    settings: tuple[str, ...] = (),
    relays: TcpRelays | None = None,
    envoys: int = 0,
) -> AsyncIterator[Testbed]:
    """`options` as it is, but for its own ports, `settings`, and `envoys` Envoys; the client goes to the edges alone.
    With `relays`, all connections of its processes and clients go over these.
    """
    every = (*COMMON_SETTINGS, *settings, *options.settings)
    own = replace(options, base_port=0, envoy=bool(envoys), envoys=max(1, envoys), settings=every)
    with progress_reporter(console) as say:
        say("starting a mesh")
        async with local_mesh(own, transform_plan=relays.insert_relays if relays else None) as mesh:
            gc.collect()  # the channels that watched the start are closed, and yet their connections wait for this
            addresses = relays.client_addresses if relays else [each.address for each in mesh.plan.processes_of("edge")]
            async with Client(*addresses, api_key=mesh.api_key) as client:
                yield Testbed(mesh, client, say)
            say("draining the mesh")


@asynccontextmanager
async def under_load(load: ClosedLoopLoad | Loads) -> AsyncIterator[None]:
    """Run the block while `load` is offered; afterwards let what is under way end."""
    running = asyncio.create_task(load.run())
    try:
        yield
    finally:
        load.stop()
        await running


async def wait_for_tokens(load: ClosedLoopLoad | Loads, tokens_received: int) -> None:
    """Wait until clients have got `tokens` more."""
    wanted = load.tokens_received + tokens_received
    while load.tokens_received < wanted:  # noqa: ASYNC110  # who waits here is a proof that counts, not the load that makes
        await asyncio.sleep(POLL_INTERVAL_S)


def progress_text(load: ClosedLoopLoad | Loads, faults: list[InjectedFault], planned: int) -> str:
    done = len(load.transcripts) - load.active_requests
    return (
        f"{len(faults)} of {planned} faults, {done} requests done, {load.active_requests} active, "
        f"{load.failed_requests} failed, {load.tokens_received:,} tokens"
    )
