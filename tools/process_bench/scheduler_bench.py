"""Measures the process of one scheduler with the streams of a fleet.

The process serves one gRPC stream per worker and keeps one to each shard. All slots are busy with long answers, and
workers send what they send then, at its real rate. Workers run in other processes of this machine: with less than about
3 idle cores they send late, and the figure of frames per second says so.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.chassis.server.server import serving
from penstock.chassis.streams.link import accept_stream
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1.queue_pb2 import DispatchResponse
from penstock.mesh.v1.queue_pb2_grpc import QueueServiceServicer, add_QueueServiceServicer_to_server
from process_bench.processes import PhaseFigures, TierProcess, discard, running, watched_tier

WORKER_STREAMS = Path(__file__).with_name("worker_streams.py")
SHARDS = 8  # as the leases of `worker_streams.py` name
ATTACH_TIMEOUT_S = 120.0
SETTLE_S, MEASURED_S = 5.0, 10.0  # s after the attach storm in which leases are reported in full, and s of the figures


@dataclass(frozen=True, kw_only=True)
class SchedulerFigures:
    """Figures of the attach storm, of the time after it in which leases are reported in full, and of the rest."""

    attach: PhaseFigures
    settle: PhaseFigures
    steady: PhaseFigures
    streams_opened: int  # by the workers; one each unless streams were lost
    closed_streams: dict[str, int]  # at the scheduler, by reason
    frames_per_s: float  # from the workers, in the steady state


async def measure(workers: int, slots: int, clients: int, *, settle_s: float, measured_s: float) -> SchedulerFigures:
    shards = Shards(workers)
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(shards.serving(f"q{each}")) for each in range(SHARDS)]
        scheduler = await stack.enter_async_context(watched_tier("scheduler", QUEUES=",".join(addresses)))
        fleet = await stack.enter_async_context(_fleet(scheduler, workers, slots, clients))
        await scheduler.begin_phase()
        await fleet.attach(shards)
        attach = await scheduler.end_phase()
        await scheduler.begin_phase()
        await asyncio.sleep(settle_s)
        settle = await scheduler.end_phase()
        await scheduler.begin_phase()
        before = fleet.frames_sent
        await asyncio.sleep(measured_s)
        steady = await scheduler.end_phase()
        return SchedulerFigures(
            attach=attach,
            settle=settle,
            steady=steady,
            streams_opened=fleet.streams_opened,
            closed_streams=dict(scheduler.closed_streams),
            frames_per_s=(fleet.frames_sent - before) / steady.wall_s,
        )


class Shards:
    """The ends of the scheduler's streams at the shards: they count workers of the catalog, and read the rest."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.workers = 0
        self.has_all = asyncio.Event()

    @asynccontextmanager
    async def serving(self, name: str) -> AsyncIterator[str]:
        registration = add_QueueServiceServicer_to_server, _Shard(name, self)
        async with serving("127.0.0.1:0", [registration], drain_grace=0.1) as server:
            yield server.address

    def on_catalog(self, entries: Any) -> None:
        self.workers = sum(each.workers_hint for each in entries)
        if self.workers >= self._wanted:
            self.has_all.set()


class _Shard(QueueServiceServicer):
    def __init__(self, name: str, shards: Shards) -> None:
        self._hello, self._shards = hello_of("queue", name), shards

    async def Submit(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """Edges do not connect."""

    async def Dispatch(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async with accept_stream(context, DispatchResponse, self._hello) as peer:
            async for frame in peer:
                if frame.WhichOneof("frame") == "catalog":
                    self._shards.on_catalog(frame.catalog.entries)


class Fleet:
    """The processes of the workers' streams."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes
        self._figures = [(0, 0)] * len(processes)  # streams opened and frames sent

    @property
    def streams_opened(self) -> int:
        return sum(opened for opened, _ in self._figures)

    @property
    def frames_sent(self) -> int:
        return sum(sent for _, sent in self._figures)

    async def attach(self, shards: Shards) -> None:
        """Attach all workers, and return once a shard has a catalog with all of them."""
        for each in self._processes:
            assert each.stdin
            each.stdin.write(b"attach\n")
        try:
            async with asyncio.timeout(ATTACH_TIMEOUT_S):
                await shards.has_all.wait()
        except TimeoutError:
            raise SystemExit(f"only {shards.workers:,} workers have attached in {ATTACH_TIMEOUT_S:.0f} s") from None

    async def follow(self, number: int) -> None:
        lines = self._processes[number].stdout
        assert lines
        async for line in lines:
            opened, sent = line.split()
            self._figures[number] = int(opened), int(sent)


@asynccontextmanager
async def _fleet(scheduler: TierProcess, workers: int, slots: int, clients: int) -> AsyncIterator[Fleet]:
    per_client = -(-workers // clients)
    async with AsyncExitStack() as stack:
        processes = []
        for first in range(0, workers, per_client):
            arguments = (str(first), str(min(per_client, workers - first)), str(slots), scheduler.address)
            processes.append(await stack.enter_async_context(running(str(WORKER_STREAMS), *arguments)))
        for each in processes:
            assert each.stdout
            if await each.stdout.readline() != b"ready\n":
                raise SystemExit("a process with worker streams has ended before it was ready")
        fleet = Fleet(processes)
        following = [asyncio.create_task(fleet.follow(number)) for number in range(len(processes))]
        following += [asyncio.create_task(discard(each.stderr)) for each in processes]
        try:
            yield fleet
        finally:
            for task in following:
                task.cancel()


def print_figures(found: SchedulerFigures, workers: int) -> None:
    attach, settle, steady = found.attach, found.settle, found.steady
    took = f"all {workers:,} workers in {attach.wall_s:.1f} s, {attach.cpu_s:.1f} CPU s"
    print(f"attach storm: {took}; {attach.loop_text}")
    print(f"first reports: {settle.cpu_s / settle.wall_s:.2f} cores; {settle.loop_text}")
    cores = steady.cpu_s / steady.wall_s
    print(f"steady: {cores:.2f} cores, {found.frames_per_s:,.0f} frames/s; {steady.loop_text}")
    print(f"streams: {found.streams_opened:,} opened for {workers:,} workers; closed: {found.closed_streams or 'none'}")
