"""Measures the process of a shard that is killed and takes back the tickets of its edges after its restart.

Edges in another process have queued their tickets at the shard when it is killed. It starts again at the same address.
The edges connect again and send all their tickets at once, and a scheduler grants credit for one ticket after another
meanwhile.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from penstock.chassis.channels import channel
from penstock.chassis.streams.link import Link
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.queue_pb2 import Catalog, Credit, DispatchRequest, Offer, Place
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceStub
from penstock.mesh.v1.ticket_pb2 import CatalogEntry, Lease
from process_bench.processes import PhaseFigures, discard, running, watched_tier

EDGE_STREAMS = Path(__file__).with_name("edge_streams.py")
MODEL = "m"  # as in `edge_streams.py`
CREDIT_INTERVAL_S = 0.01  # s between a lease and the next credit
TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class RestartFigures:
    """Figures from the moment at which the restarted shard listens until all tickets are in its queue."""

    restart: PhaseFigures
    first_lease_s: float  # until an edge has the first lease
    all_queued_s: float  # until the edges know that all their tickets are queued
    leased: int
    rejected: int
    closed_streams: dict[str, int]  # at the restarted shard, by reason


class EdgeCounts(NamedTuple):
    """Tickets that the edges know to be queued, leased and rejected, since their start."""

    queued: int
    leased: int
    rejected: int


@dataclass
class Edges:
    """The process of the edges."""

    process: asyncio.subprocess.Process

    async def counts(self, begun_at: float) -> EdgeCounts:
        """Return the next counts. Raises SystemExit if there are none, or `TIMEOUT_S` after `begun_at`."""
        assert self.process.stdout
        line = await asyncio.wait_for(self.process.stdout.readline(), TIMEOUT_S)
        if not line:
            raise SystemExit("the process with the edges has ended")
        found = EdgeCounts(*map(int, line.split()))
        if time.monotonic() - begun_at > TIMEOUT_S:
            raise SystemExit(f"only {found.queued + found.rejected:,} tickets were answered in {TIMEOUT_S:.0f} s")
        return found

    async def queue_all(self, tickets: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"connect\n")
        begun_at = time.monotonic()
        while (await self.counts(begun_at)).queued < tickets:
            pass


async def measure(tickets: int, edges: int) -> RestartFigures:
    """Raises SystemExit if the shard has not answered all tickets after `TIMEOUT_S`."""
    total = edges * -(-tickets // edges)
    async with AsyncExitStack() as stack:
        async with watched_tier("queue") as shard:
            fleet = await stack.enter_async_context(_edges(edges, total // edges, shard.address))
            await fleet.queue_all(total)
        restarted = await stack.enter_async_context(watched_tier("queue", LISTEN=shard.address))
        begun_at, first_lease_s = time.monotonic(), 0.0
        await restarted.begin_phase()
        await stack.enter_async_context(_scheduler(restarted.address))
        counts = EdgeCounts(0, 0, 0)
        while counts.queued + counts.rejected < 2 * total:
            counts = await fleet.counts(begun_at)
            first_lease_s = first_lease_s or (time.monotonic() - begun_at if counts.leased else 0.0)
        all_queued_s = time.monotonic() - begun_at
        return RestartFigures(
            restart=await restarted.end_phase(),
            first_lease_s=first_lease_s,
            all_queued_s=all_queued_s,
            leased=counts.leased,
            rejected=counts.rejected,
            closed_streams=dict(restarted.closed_streams),
        )


@asynccontextmanager
async def _edges(edges: int, tickets: int, address: str) -> AsyncIterator[Edges]:
    async with running(str(EDGE_STREAMS), "0", str(edges), str(tickets), address) as process:
        assert process.stdout
        assert process.stderr
        if await process.stdout.readline() != b"ready\n":
            raise SystemExit("the process with the edges has ended before it was ready")
        discarding = asyncio.create_task(discard(process.stderr))
        try:
            yield Edges(process)
        finally:
            discarding.cancel()


class _Scheduler:
    """The scheduler's end of a stream. It places each offered ticket and then grants credit for another one."""

    def __init__(self, link_of: Any) -> None:
        self.is_up = asyncio.Event()
        self.link = link_of(on_frame=self._on_frame, on_up=lambda _: self._start())

    def _start(self) -> None:
        entry = CatalogEntry(model=MODEL, worker_address="w:1", workers_hint=1)
        self.link.send(DispatchRequest(catalog=Catalog(entries=[entry])))
        self._grant_credit()
        self.is_up.set()

    def _grant_credit(self) -> None:
        self.link.send(DispatchRequest(credit=Credit(model=MODEL, tickets=1)))

    def _on_frame(self, frame: Any) -> None:
        if frame.WhichOneof("frame") == "offer":
            self._place(frame.offer)

    def _place(self, offer: Offer) -> None:
        ticket = offer.ticket
        lease = Lease(lease_id=ticket.ticket_id, ticket_id=ticket.ticket_id, attempt=ticket.attempt)
        lease.worker_id, lease.worker_address = "w", "w:1"
        self.link.send(DispatchRequest(place=Place(lease=lease)))
        asyncio.get_running_loop().call_later(CREDIT_INTERVAL_S, self._grant_credit)


@asynccontextmanager
async def _scheduler(address: str) -> AsyncIterator[None]:
    async with channel(address) as to_shard:
        call, hello = QueueServiceStub(to_shard).Dispatch, hello_of("scheduler", "s1")
        scheduler = _Scheduler(lambda **callbacks: Link("s1", call, DispatchRequest, hello, is_quiet=True, **callbacks))
        task = asyncio.create_task(scheduler.link.run())
        try:
            await asyncio.wait_for(scheduler.is_up.wait(), TIMEOUT_S)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def print_figures(found: RestartFigures) -> None:
    restart = found.restart
    print(f"first lease after {found.first_lease_s:.2f} s, {found.leased:,} leases meanwhile")
    print(f"all tickets taken back after {found.all_queued_s:.2f} s, {found.rejected:,} rejected")
    print(f"shard: {restart.cpu_s:.1f} CPU s; {restart.loop_text}; closed streams: {found.closed_streams or 'none'}")
