"""What one look at the processes of a mesh found."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from penstock.chassis.channels import channel, resolve
from penstock.chassis.errors import PenstockError, error_from_rpc
from penstock.cli.admin import AdminCall
from penstock.v1.admin_pb2 import GetSnapshotRequest, Snapshot
from penstock.v1.admin_pb2_grpc import AdminStub

TIMEOUT = 2.0  # s; a process that takes longer is shown as not answering


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One process: what it said, or why it said nothing."""

    name: str
    address: str
    snapshot: Snapshot | None = None
    error: PenstockError | None = None

    @property
    def figures(self) -> Mapping[str, float]:
        return self.snapshot.figures if self.snapshot else {}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table of the snapshot; none where the process has no such table, as an older one may not."""
        found = MessageToDict(self.snapshot.tables).get(table, []) if self.snapshot else []
        return [{name: _whole(value) for name, value in row.items()} for row in found]


@dataclass(frozen=True, slots=True)
class Watch:
    """The processes that are looked at: name and Admin stub of each, by address."""

    processes: Mapping[str, tuple[str, Any]]

    async def look(self) -> list[Sighting]:
        return await asyncio.gather(*(_look_at(address, *each) for address, each in self.processes.items()))


@asynccontextmanager
async def watching(names: Mapping[str, str]) -> AsyncIterator[Watch]:
    """Look at the processes of `names` (by address), over one channel each."""
    async with AsyncExitStack() as stack:
        channels = {address: await stack.enter_async_context(channel(address)) for address in names}
        yield Watch({address: (names[address], AdminStub(channels[address])) for address in names})


async def _look_at(address: str, name: str, stub: Any) -> Sighting:
    metadata = AdminCall(target=address, as_json=False).metadata
    try:
        answer = await stub.GetSnapshot(GetSnapshotRequest(), metadata=metadata, timeout=TIMEOUT)
    except grpc.aio.AioRpcError as error:
        return Sighting(name=name, address=address, error=error_from_rpc(error))
    return Sighting(name=name, address=address, snapshot=answer.snapshot)


async def addresses_of(targets: Sequence[str]) -> dict[str, str]:
    """Return each address behind `targets` (host:port or dns:///name:port), named by itself; raises OSError."""
    return {address: address for target in targets for address in await resolve(target)}


def _whole(value: Any) -> Any:
    """A table on the wire knows no whole numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
