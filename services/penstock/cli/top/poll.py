"""Polls the snapshots of the processes of a mesh."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from penstock.chassis.channels import AddressWatch, resolve
from penstock.chassis.errors import PenstockError
from penstock.chassis.lifecycle import background
from penstock.chassis.security.identity import instance_of
from penstock.cli.admin import AdminTarget, admin_error
from penstock.local_mesh.operator_channels import operator_channel
from penstock.v1.admin_pb2 import GetSnapshotRequest, Snapshot
from penstock.v1.admin_pb2_grpc import AdminStub

TIMEOUT_S = 2.0  # s; a slower process is shown as not answering


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """The snapshot of one process, or the error of the call."""

    name: str
    address: str
    snapshot: Snapshot | None = None
    error: PenstockError | None = None

    @property
    def display_name(self) -> str:
        """The name in the local mesh. Of a process that is known by its address alone: its instance."""
        return instance_of(self.snapshot.instance_id) if self.snapshot and self.name == self.address else self.name

    @property
    def figures(self) -> Mapping[str, float]:
        return self.snapshot.figures if self.snapshot else {}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table of the snapshot; empty if the process, perhaps an older one, has no such table."""
        tables = self.snapshot.tables.fields if self.snapshot else {}
        rows = [MessageToDict(each.struct_value) for each in tables[table].list_value.values] if table in tables else []
        return [{name: _whole_number(value) for name, value in row.items()} for row in rows]


class ProcessPoller:
    """Polls processes over one channel each."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: the name of each process by its address; others are named by their address."""
        self._names = names
        self._channels: dict[str, tuple[AbstractAsyncContextManager[Any], Any]] = {}  # with its Admin stub, by address

    async def poll(self) -> list[ProcessSample]:
        """Return the sample of each process, in the order of their addresses."""
        stubs = {address: stub for address, (_, stub) in self._channels.items()}
        return await asyncio.gather(
            *(_poll_process(address, self._names.get(address, address), stub) for address, stub in stubs.items())
        )

    async def poll_first(self) -> list[ProcessSample]:
        """Return samples of which at least one has a snapshot; raises the first PenstockError if no process answers."""
        samples = await self.poll()
        if samples and samples[0].error and not any(each.snapshot for each in samples):
            raise samples[0].error
        return samples

    async def set_addresses(self, addresses: Collection[str]) -> None:
        """Open a channel to each new address, and close those of the others."""
        for address in self._channels.keys() - set(addresses):
            opened, _ = self._channels.pop(address)
            await opened.__aexit__(None, None, None)
        for address in addresses:
            if address not in self._channels:
                opened = operator_channel(address)
                self._channels[address] = opened, AdminStub(await opened.__aenter__())

    async def follow(self, targets: Sequence[str]) -> None:
        """Follow the addresses behind `targets`, until all are fixed."""
        async for present in AddressWatch(targets):
            await self.set_addresses([*self._names, *sorted(present)])


@asynccontextmanager
async def open_poller(names: Mapping[str, str], targets: Sequence[str]) -> AsyncIterator[ProcessPoller]:
    """Poll the processes of `names` (by address) and those behind `targets`: host:port or dns:///name:port.

    Names are looked up again during the block. Raises OSError if one cannot be looked up at first.
    """
    poller = ProcessPoller(names)
    found = [address for target in targets for address in await resolve(target)]
    try:
        await poller.set_addresses([*names, *found])
        async with background(poller.follow(targets)):
            yield poller
    finally:
        await poller.set_addresses(())


async def _poll_process(address: str, name: str, stub: Any) -> ProcessSample:
    metadata = AdminTarget(target=address, as_json=False).metadata
    try:
        response = await stub.GetSnapshot(GetSnapshotRequest(), metadata=metadata, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return ProcessSample(name=name, address=address, error=admin_error(error, address))
    return ProcessSample(name=name, address=address, snapshot=response.snapshot)


def figures_of(samples: Sequence[ProcessSample]) -> dict[str, Mapping[str, float]]:
    """Return the figures of each process by its name."""
    return {each.display_name: each.figures for each in samples}


def _whole_number(value: Any) -> Any:
    """Convert a float without a fraction to an int, because a protobuf Struct has only floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
