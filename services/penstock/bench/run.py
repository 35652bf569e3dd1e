"""Offers a load through a driver, in a closed loop or at a rate, and collects the transcripts."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import psutil

from penstock.bench.drivers.driver import Driver
from penstock.bench.load import BenchLoad, BenchRequest
from penstock.bench.transcript import Transcript
from penstock.local_mesh.state import MeshState

OnTranscript = Callable[[Transcript], None]
Request = TypeVar("Request")


async def offer_load(load: BenchLoad, driver: Driver, on_transcript: OnTranscript) -> list[Transcript]:
    """Send every request of `load` once; return the transcripts by number."""
    transcripts: list[Transcript] = []

    async def send(request: BenchRequest) -> None:
        transcript = Transcript(request.number, time.perf_counter())
        await driver.send(request, transcript)
        transcripts.append(transcript)
        on_transcript(transcript)

    if load.rate:
        await send_at_times(load.planned_requests(), lambda request: request.send_at, send)
    else:
        await run_closed_loop(min(load.concurrency, load.requests), load.planned_requests(), send)
    return sorted(transcripts, key=lambda transcript: transcript.number)


async def run_closed_loop(
    clients: int, requests: Iterator[Request], send: Callable[[Request], Awaitable[object]]
) -> None:
    """Run `clients` that each send the next of `requests` when their last one has ended, until there are no more."""

    async def run_client() -> None:
        for request in requests:
            await send(request)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(run_client())


async def send_at_times(
    requests: Iterable[Request], time_of: Callable[[Request], float], send: Callable[[Request], Awaitable[object]]
) -> None:
    """Send each request `time_of(request)` s after the start of the run, whether or not others have ended."""

    async def send_one(request: Request) -> None:
        await send(request)

    started_at = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for request in requests:
            await asyncio.sleep(max(0.0, started_at + time_of(request) - time.monotonic()))
            group.create_task(send_one(request))


def cpu_by_tier(state: MeshState | None) -> Mapping[str, float]:
    """Return the CPU time in s that the processes of each tier of a local mesh have used."""
    used: dict[str, float] = {}
    for process in state.processes if state else ():
        try:
            used[process.tier] = used.get(process.tier, 0.0) + process_cpu_s(process.pid)
        except psutil.NoSuchProcess:
            continue
    return used


def process_cpu_s(pid: int) -> float:
    """Return the CPU time in s of a process and its children; raises psutil.NoSuchProcess."""
    process = psutil.Process(pid)
    return float(sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True))))
