"""Polls the snapshots of the processes of a mesh."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from penstock.chassis.channels import resolve
from penstock.chassis.errors import PenstockError
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
        rows = MessageToDict(self.snapshot.tables).get(table, []) if self.snapshot else []
        return [{name: _whole_number(value) for name, value in row.items()} for row in rows]


@dataclass(frozen=True, slots=True)
class ProcessPoller:
    """Polls the processes; `processes` has the name and Admin stub of each by address."""

    processes: Mapping[str, tuple[str, Any]]

    async def poll(self) -> list[ProcessSample]:
        return await asyncio.gather(*(_poll_process(address, *each) for address, each in self.processes.items()))

    async def poll_first(self) -> list[ProcessSample]:
        """Return samples of which at least one has a snapshot; raises the first PenstockError if no process answers."""
        samples = await self.poll()
        if samples[0].error and not any(each.snapshot for each in samples):
            raise samples[0].error
        return samples


@asynccontextmanager
async def open_poller(names: Mapping[str, str]) -> AsyncIterator[ProcessPoller]:
    """Poll the processes of `names` (by address), over one channel each."""
    async with AsyncExitStack() as stack:
        channels = {address: await stack.enter_async_context(operator_channel(address)) for address in names}
        yield ProcessPoller({address: (names[address], AdminStub(channels[address])) for address in names})


async def _poll_process(address: str, name: str, stub: Any) -> ProcessSample:
    metadata = AdminTarget(target=address, as_json=False).metadata
    try:
        response = await stub.GetSnapshot(GetSnapshotRequest(), metadata=metadata, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        return ProcessSample(name=name, address=address, error=admin_error(error, address))
    return ProcessSample(name=name, address=address, snapshot=response.snapshot)


async def addresses_of(targets: Sequence[str]) -> dict[str, str]:
    """Return each address behind `targets` (host:port or dns:///name:port), named by itself; raises OSError."""
    return {address: address for target in targets for address in await resolve(target)}


def figures_of(samples: Sequence[ProcessSample]) -> dict[str, Mapping[str, float]]:
    """Return the figures of each process by its name."""
    return {each.display_name: each.figures for each in samples}


def _whole_number(value: Any) -> Any:
    """Convert a float without a fraction to an int, because a protobuf Struct has only floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
