"""What every proof stands on: a mesh of its own, a client of all its edges, and a line that says what happens."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from rich.console import Console

from penstock.bench.progress import Say, saying
from penstock.chassis.channels import channel
from penstock.client import Client
from penstock.local_mesh.mesh import LocalMesh, local_mesh
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.checks.injected_faults import Fault
from penstock.proofs.testbed.load import Load
from penstock.proofs.testbed.tcp_relays import Wires
from penstock.v1.admin_pb2 import GetSnapshotRequest, Snapshot
from penstock.v1.admin_pb2_grpc import AdminStub

REST_TIMEOUT = 60.0  # s; above the grace that auth gives an edge that stays away
POLL = 0.1  # s

# What must be back at zero when nothing runs, by tier.
RESIDUE = {
    "edge": ("active_requests", "reservations_open", "unread_bytes"),
    "auth": ("reservations", "reserved_tokens", "concurrent_requests"),
    "queue": ("waiting", "waiting_tokens", "offered"),
    "scheduler": ("leases", "promised_blocks"),
    "worker": ("running", "waiting", "kv_blocks_used", "leases_expected", "leases_running", "parked"),
}

SETTINGS = (
    "PENSTOCK_AUTH_EDGE_GRACE=8",  # s; a proof ends when auth has given up the edges that died
    # Nothing is refused for load: what is lost is to be told from what is not let in.
    "PENSTOCK_QUEUE_TTFT_INTERACTIVE=0",
    "PENSTOCK_QUEUE_TTFT_STANDARD=0",
)


@dataclass(frozen=True, slots=True)
class Rig:
    mesh: LocalMesh
    client: Client
    say: Say

    async def figures(self, address: str) -> dict[str, float]:
        return dict((await self._snapshot(address)).figures)

    async def instance_id(self, address: str) -> str:
        return (await self._snapshot(address)).instance_id

    async def total(self, tier: str, name: str) -> float:
        return sum([(await self.figures(each.address))[name] for each in self.mesh.plan.of(tier)])

    async def residue(self) -> dict[str, float]:
        """What processes still hold when they should hold nothing, after a while for them to come to rest."""
        give_up_at = time.monotonic() + REST_TIMEOUT
        while (held := await self._held()) and time.monotonic() < give_up_at:
            self.say(f"coming to rest: {held}")
            await asyncio.sleep(POLL)
        return held

    async def _snapshot(self, address: str) -> Snapshot:
        async with channel(address) as to_process:
            return (await AdminStub(to_process).GetSnapshot(GetSnapshotRequest())).snapshot

    async def _held(self) -> dict[str, float]:
        held: dict[str, float] = {}
        for child in self.mesh.processes.children:
            figures = await self.figures(child.spec.address)
            held |= {f"{child.spec.name} {name}": figures[name] for name in RESIDUE[child.spec.tier] if figures[name]}
        return held


@asynccontextmanager
async def rig(
    asked: MeshOptions, console: Console, *, settings: tuple[str, ...] = (), wires: Wires | None = None
) -> AsyncIterator[Rig]:
    """`asked` as it is, but for ports of its own, no proxy that would hide which edge is spoken to, and `settings`;
    with `wires`, all that its processes and clients say goes over these.
    """
    own = replace(asked, base_port=0, envoy=False, settings=(*SETTINGS, *settings, *asked.settings))
    with saying(console) as say:
        say("starting a mesh")
        async with local_mesh(own, rewire=wires.rewire if wires else None) as mesh:
            gc.collect()  # the channels that watched the start are closed, and yet their connections wait for this
            addresses = wires.doors if wires else [each.address for each in mesh.plan.of("edge")]
            async with Client(*addresses, api_key=mesh.api_key) as client:
                yield Rig(mesh, client, say)
            say("draining the mesh")


@asynccontextmanager
async def under_load(load: Load) -> AsyncIterator[None]:
    """Run the block while `load` is offered; afterwards let what is under way end."""
    running = asyncio.create_task(load.run())
    try:
        yield
    finally:
        load.stop()
        await running


async def until_flowing(load: Load, tokens: int) -> None:
    """Wait until clients have got `tokens` more."""
    wanted = load.tokens + tokens
    while load.tokens < wanted:  # noqa: ASYNC110  # who waits here is a proof that counts, not the load that makes
        await asyncio.sleep(POLL)


def progress(load: Load, faults: list[Fault], wanted: int) -> str:
    done = len(load.histories) - load.under_way
    return (
        f"{len(faults)} of {wanted} faults, {done} requests done, {load.under_way} under way, {load.failures} failed, "
        f"{load.tokens:,} tokens"
    )
