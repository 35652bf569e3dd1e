"""Streams to the workers that run something for this edge."""

import asyncio

from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.upstreams.worker__edge_links_worker import WorkerConnection
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.v1.stream_pb2 import Hello

SWEEPS_PER_IDLE_TIMEOUT = 4  # looks for idle streams within the time one may be idle


class WorkerClient:
    """Opens a stream with the first lease of a worker, and closes it when nothing ran there for a while."""

    def __init__(self, hello: Hello, runner: EffectRunner, *, idle_timeout: float) -> None:
        self._hello = hello
        self._runner = runner
        self._idle_timeout = idle_timeout  # s
        self._connections: dict[str, WorkerConnection] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._connections.values())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            while True:
                await asyncio.sleep(self._idle_timeout / SWEEPS_PER_IDLE_TIMEOUT)
                self._close_idle()

    def start(self, passage: RequestContext, lease: Lease) -> None:
        address = lease.worker_address
        if address not in self._connections:
            self._open(address)
        self._connections[address].start(passage, lease)

    def _open(self, address: str) -> None:
        assert self._group is not None, "a lease came before the links ran"
        self._connections[address] = WorkerConnection(address, self._hello, self._runner)
        self._tasks[address] = self._group.create_task(self._connections[address].run(), name=f"worker {address}")

    def _close_idle(self) -> None:
        now = self._runner.now()
        for address, link in list(self._connections.items()):
            if not link.runs and now - link.last_used_at > self._idle_timeout:
                del self._connections[address]
                self._tasks.pop(address).cancel()
