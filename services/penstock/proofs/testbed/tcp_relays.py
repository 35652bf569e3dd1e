"""TCP relays in place of every connection of a local mesh, each of which can be cut in one or both directions.

A relay that is cut loses no bytes and closes no connection: bytes wait, as TCP would retransmit them. Both ends keep an
open, silent connection, and the waiting bytes arrive, stale, when the relay is restored.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from penstock.local_mesh.plan import MeshPlan, ProcessSpec

CHUNK_BYTES = 64 << 10
CLIENTS = "clients"
PEER_SETTINGS = ("QUEUES", "SCHEDULERS", "AUTHS")  # settings with the addresses that a process connects to
ADVERTISING_TIER = "worker"  # the tier that advertises its address; one relay carries all connections to a worker


class CutDirection(Enum):
    """Directions that are cut, as seen from the process that opened the connection."""

    BOTH = "both directions"
    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


class RelayEnds(NamedTuple):
    """Names of the processes at both ends; `client` is a tier if a relay serves several processes."""

    client: str
    server: str


class TcpRelay:
    """Forwards every connection to `address` to `target`."""

    def __init__(self, ends: RelayEnds, target: str) -> None:
        self.ends = ends
        self.address = ""
        self._target = target
        self._open_events = {CutDirection.UPSTREAM: asyncio.Event(), CutDirection.DOWNSTREAM: asyncio.Event()}
        self._connections: set[asyncio.Task[None]] = set()
        self.has_blocked_data = False  # since the last cut
        self.restore()

    def __repr__(self) -> str:
        cut = [direction.value for direction, event in self._open_events.items() if not event.is_set()]
        return f"<TcpRelay {self.ends.client} > {self.ends.server}{', cut: ' + ' and '.join(cut) if cut else ''}>"

    def cut(self, direction: CutDirection) -> None:
        self.has_blocked_data = False
        for each, event in self._open_events.items():
            if direction in (each, CutDirection.BOTH):
                event.clear()

    def restore(self) -> None:
        for event in self._open_events.values():
            event.set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Accept connections for the duration of the block, which closes them all."""
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
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with suppress(OSError, asyncio.CancelledError):  # the target or this relay has closed the connection
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

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: CutDirection
    ) -> None:
        is_open = self._open_events[direction]
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                self.has_blocked_data |= not is_open.is_set()
                await is_open.wait()
                writer.write(chunk)
                await writer.drain()
            await is_open.wait()  # the end of the stream waits like any byte
            writer.write_eof()


class TcpRelays:
    """All relays of one mesh, after `insert_relays` has seen its plan; they listen until `stack` closes."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.all: list[TcpRelay] = []
        self._stack = stack
        self._planned_addresses: set[str] = set()

    def between(self, client: str, server: str) -> list[TcpRelay]:
        """Return the relays between processes of two tiers, or between clients and a tier."""
        return [
            each for each in self.all if (_tier_of(each.ends.client), _tier_of(each.ends.server)) == (client, server)
        ]

    @property
    def client_addresses(self) -> list[str]:
        """Addresses at which clients reach the edges."""
        return [each.address for each in self.between(CLIENTS, "edge")]

    async def insert_relays(self, plan: MeshPlan) -> MeshPlan:
        """Insert a relay into every connection that the settings of `plan` name, and before each edge and worker."""
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
        for name in (prefix + peers for peers in PEER_SETTINGS):
            if name in settings:
                relays = [
                    await self._open_relay(RelayEnds(spec.name, names[each]), each)
                    for each in settings[name].split(",")
                ]
                settings[name] = ",".join(relay.address for relay in relays)
        if spec.tier == ADVERTISING_TIER:
            relay = await self._open_relay(RelayEnds("edge", spec.name), spec.address)
            settings[prefix + "ADVERTISE"] = relay.address
        return replace(spec, environment=settings)

    async def _open_relay(self, ends: RelayEnds, target: str) -> TcpRelay:
        """Open a relay at a port that no process of the plan will use."""
        while True:
            async with AsyncExitStack() as opened:
                relay = TcpRelay(ends, target)
                await opened.enter_async_context(relay.listening())
                if relay.address not in self._planned_addresses:
                    self._stack.push_async_callback(opened.pop_all().aclose)
                    self.all.append(relay)
                    return relay


def _tier_of(name: str) -> str:
    return name.partition("-")[0]
