"""Streams to the workers that run something for this edge."""

import asyncio

from penstock.edge.links.worker import WorkerLink
from penstock.edge.passage import Control, Passage
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.v1.stream_pb2 import Hello

SWEEPS = 4  # looks for idle streams within the time one may be idle


class WorkerLinks:
    """Opens a stream with the first lease of a worker, and closes it when nothing ran there for a while."""

    def __init__(self, hello: Hello, control: Control, *, idle: float) -> None:
        self._hello = hello
        self._control = control
        self._idle = idle  # s
        self._links: dict[str, WorkerLink] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._links.values())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            while True:
                await asyncio.sleep(self._idle / SWEEPS)
                self._close_idle()

    def start(self, passage: Passage, lease: Lease) -> None:
        address = lease.worker_address
        if address not in self._links:
            self._open(address)
        self._links[address].start(passage, lease)

    def _open(self, address: str) -> None:
        assert self._group is not None, "a lease came before the links ran"
        self._links[address] = WorkerLink(address, self._hello, self._control)
        self._running[address] = self._group.create_task(self._links[address].run(), name=f"worker {address}")

    def _close_idle(self) -> None:
        now = self._control.now()
        for address, link in list(self._links.items()):
            if not link.runs and now - link.used_at > self._idle:
                del self._links[address]
                self._running.pop(address).cancel()
