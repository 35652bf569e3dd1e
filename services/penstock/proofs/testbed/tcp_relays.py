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

CHUNK_BYTES = 64 << 10  # bytes
CLIENTS = "clients"
PEER_SETTINGS = ("QUEUES", "SCHEDULERS", "AUTHS")  # settings that name whom a process connects to
ADVERTISING_TIER = "worker"  # the tier that tells the others where it is; one wire leads all of them there


class CutDirection(Enum):
    """Which ways are cut, as whoever opened the connection sees it."""

    BOTH = "both ways"
    UPSTREAM = "the way there"
    DOWNSTREAM = "the way back"


class RelayEnds(NamedTuple):
    """Names of processes, or of many where one wire serves them."""

    client: str
    server: str


class TcpRelay:
    """Carries every connection made to `address` on to `target`."""

    def __init__(self, ends: RelayEnds, target: str) -> None:
        self.ends = ends
        self.address = ""
        self._target = target
        self._open_events = {CutDirection.UPSTREAM: asyncio.Event(), CutDirection.DOWNSTREAM: asyncio.Event()}
        self._connections: set[asyncio.Task[None]] = set()
        self.has_blocked_data = False  # something since it was cut
        self.restore()

    def __repr__(self) -> str:
        cut = [way.value for way, event in self._open_events.items() if not event.is_set()]
        return f"<Wire {self.ends.client} > {self.ends.server}{', cut: ' + ' and '.join(cut) if cut else ''}>"

    def cut(self, direction: CutDirection) -> None:
        self.has_blocked_data = False
        for way, event in self._open_events.items():
            if direction in (way, CutDirection.BOTH):
                event.clear()

    def restore(self) -> None:
        for event in self._open_events.values():
            event.set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Take connections for as long as the block lasts; it ends them all."""
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            self.address = f"{host}:{port}"
            try:
                yield
            finally:
                for each in self._connections:
                    each.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = asyncio.current_task()
        assert carrying
        self._connections.add(carrying)
        carrying.add_done_callback(self._connections.discard)
        with suppress(OSError, asyncio.CancelledError):  # the target is away, or this wire: so is the connection
            await self._open_events[CutDirection.UPSTREAM].wait()
            host, _, port = self._target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._forward(reader, far_writer, CutDirection.UPSTREAM))
                    group.create_task(self._forward(far_reader, writer, CutDirection.DOWNSTREAM))
            finally:
                far_writer.transport.abort()
        writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: CutDirection) -> None:
        is_open = self._open_events[way]
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                self.has_blocked_data |= not is_open.is_set()
                await is_open.wait()
                writer.write(chunk)
                await writer.drain()
            await is_open.wait()  # the other end must not hear of it before
            writer.write_eof()


class TcpRelays:
    """All wires of one mesh, once `rewire` has seen its plan; they are there until `stack` is left."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.all: list[TcpRelay] = []
        self._stack = stack
        self._planned_addresses: set[str] = set()  # addresses of the mesh's processes

    def between(self, client: str, server: str) -> list[TcpRelay]:
        """Those between processes of two tiers, or between clients and a tier."""
        return [
            each for each in self.all if (_tier_of(each.ends.client), _tier_of(each.ends.server)) == (client, server)
        ]

    @property
    def client_addresses(self) -> list[str]:
        """Addresses by which clients reach the edges."""
        return [each.address for each in self.between(CLIENTS, "edge")]

    async def insert_relays(self, plan: MeshPlan) -> MeshPlan:
        """Put a wire into each connection that a process of `plan` is told to make, and before each edge and worker."""
        names = {each.address: each.name for each in plan.processes}
        self._planned_addresses = {
            address for each in plan.processes for address in (each.address, each.http, each.admin)
        }
        for edge in plan.processes_of("edge"):
            await self._open_relay(RelayEnds(CLIENTS, edge.name), edge.address)
        return replace(plan, processes=tuple([await self._with_relays(each, names) for each in plan.processes]))

    async def _with_relays(self, spec: ProcessSpec, names: Mapping[str, str]) -> ProcessSpec:
        settings = dict(spec.environment)
        prefix = f"PENSTOCK_{spec.tier.upper()}_"
        for name in (prefix + dialed for dialed in PEER_SETTINGS):
            if name in settings:
                wires = [
                    await self._open_relay(RelayEnds(spec.name, names[each]), each)
                    for each in settings[name].split(",")
                ]
                settings[name] = ",".join(each.address for each in wires)
        if spec.tier == ADVERTISING_TIER:
            settings[prefix + "ADVERTISE"] = (
                await self._open_relay(RelayEnds("edge", spec.name), spec.address)
            ).address
        return replace(spec, environment=settings)

    async def _open_relay(self, ends: RelayEnds, target: str) -> TcpRelay:
        """Begin a wire at a port of its own: one that is free now may be meant for a process that is yet to start."""
        while True:
            async with AsyncExitStack() as laid:
                wire = TcpRelay(ends, target)
                await laid.enter_async_context(wire.listening())
                if wire.address not in self._planned_addresses:
                    self._stack.push_async_callback(laid.pop_all().aclose)
                    self.all.append(wire)
                    return wire


def _tier_of(name: str) -> str:
    return name.partition("-")[0]
