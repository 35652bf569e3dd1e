"""Offers a load through an API, in a closed loop or at a rate, and gathers the histories."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from penstock.bench.apis import TIMEOUT, Api, GrpcApi, SessionApi
from penstock.bench.history import History
from penstock.bench.load import Item, Load
from penstock.bench.sse import SseApi
from penstock.chassis.channels import channel
from penstock.local_mesh.notes import MeshNote
from penstock.v1.inference_pb2_grpc import InferenceStub

Progress = Callable[[History], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the load goes."""

    api: str  # grpc, session, responses or chat
    address: str  # host:port, of gRPC or of HTTP as the API needs
    key: str
    model: str


@asynccontextmanager
async def open_api(target: Target) -> AsyncIterator[Api]:
    metadata = (("authorization", f"Bearer {target.key}"),)
    if target.api in ("responses", "chat"):
        headers, limits = dict(metadata), httpx.Limits(max_connections=None)
        base = f"http://{target.address}/v1"
        async with httpx.AsyncClient(base_url=base, headers=headers, limits=limits, timeout=TIMEOUT) as http:
            yield SseApi(http, target.api, target.model)
        return
    async with channel(target.address) as open_channel:
        stub = InferenceStub(open_channel)
        if target.api == "grpc":
            yield GrpcApi(stub, target.model, metadata)
            return
        session = SessionApi(target.model)
        running = asyncio.create_task(session.run(stub, metadata))
        try:
            await session.up()
            yield session
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def offer(load: Load, api: Api, progress: Progress) -> list[History]:
    """Send every item of `load` once; returns the histories in order of number."""
    histories: list[History] = []

    async def send(item: Item) -> None:
        history = await api.send(item)
        histories.append(history)
        progress(history)

    async with asyncio.TaskGroup() as group:
        if load.rate:
            await _at_rate(load, group, send)
        else:
            items = load.items()
            for _ in range(min(load.concurrency, load.requests)):
                group.create_task(_take_turns(items, send))
    return sorted(histories, key=lambda history: history.number)


async def _take_turns(items: Iterator[Item], send: Callable[[Item], Coroutine[Any, Any, None]]) -> None:
    for item in items:
        await send(item)


async def _at_rate(load: Load, group: asyncio.TaskGroup, send: Callable[[Item], Coroutine[Any, Any, None]]) -> None:
    started = time.perf_counter()
    for item in load.items():
        await asyncio.sleep(max(0.0, started + item.at - time.perf_counter()))
        group.create_task(send(item))


def cpu_by_tier(note: MeshNote | None) -> Mapping[str, float]:
    """Return the CPU time used so far by each tier of a local mesh, in s, children included."""
    spent: dict[str, float] = {}
    for each in note.processes if note else ():
        try:
            process = psutil.Process(each.pid)
            family = [process, *process.children(recursive=True)]
            used = sum(sum(one.cpu_times()[:2]) for one in family)
        except psutil.NoSuchProcess:
            continue
        spent[each.tier] = spent.get(each.tier, 0.0) + used
    return spent
