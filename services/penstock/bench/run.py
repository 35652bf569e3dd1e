"""Offers a load through an API, in a closed loop or at a rate, and gathers the histories."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from penstock.bench.apis import REQUEST_TIMEOUT_S, GrpcDriver, LoadDriver, SessionDriver
from penstock.bench.load import BenchLoad, BenchRequest
from penstock.bench.sse import SseDriver
from penstock.bench.transcript import Transcript
from penstock.chassis.channels import channel
from penstock.local_mesh.state import MeshState
from penstock.v1.inference_pb2_grpc import InferenceStub

OnTranscript = Callable[[Transcript], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """Where the load goes."""

    api: str  # grpc, session, responses or chat
    address: str  # host:port, of gRPC or of HTTP as the API needs
    key: str
    model: str


@asynccontextmanager
async def open_driver(target: LoadTarget) -> AsyncIterator[LoadDriver]:
    metadata = (("authorization", f"Bearer {target.key}"),)
    if target.api in ("responses", "chat"):
        headers, limits = dict(metadata), httpx.Limits(max_connections=None)
        base = f"http://{target.address}/v1"
        async with httpx.AsyncClient(base_url=base, headers=headers, limits=limits, timeout=REQUEST_TIMEOUT_S) as http:
            yield SseDriver(http, target.api, target.model)
        return
    async with channel(target.address) as open_channel:
        stub = InferenceStub(open_channel)
        if target.api == "grpc":
            yield GrpcDriver(stub, target.model, metadata)
            return
        session = SessionDriver(target.model)
        running = asyncio.create_task(session.run(stub, metadata))
        try:
            await session.wait_connected()
            yield session
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def offer_load(load: BenchLoad, driver: LoadDriver, on_transcript: OnTranscript) -> list[Transcript]:
    """Send every item of `load` once; returns the histories in order of number."""
    histories: list[Transcript] = []

    async def send(item: BenchRequest) -> None:
        history = await driver.send(item)
        histories.append(history)
        on_transcript(history)

    async with asyncio.TaskGroup() as group:
        if load.rate:
            await _send_at_rate(load, group, send)
        else:
            items = load.planned_requests()
            for _ in range(min(load.concurrency, load.requests)):
                group.create_task(_send_in_turn(items, send))
    return sorted(histories, key=lambda history: history.number)


async def _send_in_turn(
    items: Iterator[BenchRequest], send: Callable[[BenchRequest], Coroutine[Any, Any, None]]
) -> None:
    for item in items:
        await send(item)


async def _send_at_rate(
    load: BenchLoad, group: asyncio.TaskGroup, send: Callable[[BenchRequest], Coroutine[Any, Any, None]]
) -> None:
    started = time.perf_counter()
    for item in load.planned_requests():
        await asyncio.sleep(max(0.0, started + item.send_at - time.perf_counter()))
        group.create_task(send(item))


def cpu_by_tier(state: MeshState | None) -> Mapping[str, float]:
    """Return the CPU time used so far by each tier of a local mesh, in s, children included."""
    spent: dict[str, float] = {}
    for each in state.processes if state else ():
        try:
            process = psutil.Process(each.pid)
            family = [process, *process.children(recursive=True)]
            used = sum(sum(one.cpu_times()[:2]) for one in family)
        except psutil.NoSuchProcess:
            continue
        spent[each.tier] = spent.get(each.tier, 0.0) + used
    return spent
