"""TCP relays in place of every connection of a local mesh, each of which can be cut like a cable.

A cut wire drops nothing for good and closes nothing: bytes wait, as TCP would send them again. So both ends are left
with a connection that is open and silent, and what waited arrives, stale, once the wire is whole.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from penstock.local_mesh.plan import MeshPlan, ProcessSpec

CHUNK = 64 << 10  # bytes
CLIENTS = "clients"
DIALED = ("QUEUES", "SCHEDULERS", "AUTHS")  # settings that name whom a process connects to
ADVERTISED = "worker"  # the tier that tells the others where it is; one wire leads all of them there


class Cut(Enum):
    """Which ways are cut, as whoever opened the connection sees it."""

    BOTH = "both ways"
    THERE = "the way there"
    BACK = "the way back"


class Ends(NamedTuple):
    """Names of processes, or of many where one wire serves them."""

    opener: str
    server: str


class Wire:
    """Carries every connection made to `address` on to `target`."""

    def __init__(self, ends: Ends, target: str) -> None:
        self.ends = ends
        self.address = ""
        self._target = target
        self._is_open = {Cut.THERE: asyncio.Event(), Cut.BACK: asyncio.Event()}
        self._carrying: set[asyncio.Task[None]] = set()
        self.has_held_back = False  # something since it was cut
        self.mend()

    def __repr__(self) -> str:
        cut = [way.value for way, event in self._is_open.items() if not event.is_set()]
        return f"<Wire {self.ends.opener} > {self.ends.server}{', cut: ' + ' and '.join(cut) if cut else ''}>"

    def cut(self, cut: Cut) -> None:
        self.has_held_back = False
        for way, event in self._is_open.items():
            if cut in (way, Cut.BOTH):
                event.clear()

    def mend(self) -> None:
        for event in self._is_open.values():
            event.set()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[None]:
        """Take connections for as long as the block lasts; it ends them all."""
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            self.address = f"{host}:{port}"
            try:
                yield
            finally:
                for each in self._carrying:
                    each.cancel()
                await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = asyncio.current_task()
        assert carrying
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)
        with suppress(OSError, asyncio.CancelledError):  # the target is away, or this wire: so is the connection
            await self._is_open[Cut.THERE].wait()
            host, _, port = self._target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._carry(reader, far_writer, Cut.THERE))
                    group.create_task(self._carry(far_reader, writer, Cut.BACK))
            finally:
                far_writer.transport.abort()
        writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Cut) -> None:
        is_open = self._is_open[way]
        with suppress(OSError):
            while chunk := await reader.read(CHUNK):
                self.has_held_back |= not is_open.is_set()
                await is_open.wait()
                writer.write(chunk)
                await writer.drain()
            await is_open.wait()  # the other end must not hear of it before
            writer.write_eof()


class Wires:
    """All wires of one mesh, once `rewire` has seen its plan; they are there until `stack` is left."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.all: list[Wire] = []
        self._stack = stack
        self._planned: set[str] = set()  # addresses of the mesh's processes

    def of(self, opener: str, server: str) -> list[Wire]:
        """Those between processes of two tiers, or between clients and a tier."""
        return [each for each in self.all if (_tier(each.ends.opener), _tier(each.ends.server)) == (opener, server)]

    @property
    def doors(self) -> list[str]:
        """Addresses by which clients reach the edges."""
        return [each.address for each in self.of(CLIENTS, "edge")]

    async def rewire(self, plan: MeshPlan) -> MeshPlan:
        """Put a wire into each connection that a process of `plan` is told to make, and before each edge and worker."""
        names = {each.address: each.name for each in plan.processes}
        self._planned = {address for each in plan.processes for address in (each.address, each.http, each.admin)}
        for edge in plan.of("edge"):
            await self._lay(Ends(CLIENTS, edge.name), edge.address)
        return replace(plan, processes=tuple([await self._rewired(each, names) for each in plan.processes]))

    async def _rewired(self, spec: ProcessSpec, names: Mapping[str, str]) -> ProcessSpec:
        settings = dict(spec.environment)
        prefix = f"PENSTOCK_{spec.tier.upper()}_"
        for name in (prefix + dialed for dialed in DIALED):
            if name in settings:
                wires = [await self._lay(Ends(spec.name, names[each]), each) for each in settings[name].split(",")]
                settings[name] = ",".join(each.address for each in wires)
        if spec.tier == ADVERTISED:
            settings[prefix + "ADVERTISE"] = (await self._lay(Ends("edge", spec.name), spec.address)).address
        return replace(spec, environment=settings)

    async def _lay(self, ends: Ends, target: str) -> Wire:
        """Begin a wire at a port of its own: one that is free now may be meant for a process that is yet to start."""
        while True:
            async with AsyncExitStack() as laid:
                wire = Wire(ends, target)
                await laid.enter_async_context(wire.laid())
                if wire.address not in self._planned:
                    self._stack.push_async_callback(laid.pop_all().aclose)
                    self.all.append(wire)
                    return wire


def _tier(name: str) -> str:
    return name.partition("-")[0]
