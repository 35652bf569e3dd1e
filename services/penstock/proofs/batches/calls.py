"""Calls of `penstock.v1.Batches` by one caller, at any of several edges: a call whose edge is away goes to the next."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import grpc

from penstock.chassis.channels import channel
from penstock.v1 import batches_pb2 as pb
from penstock.v1.batches_pb2_grpc import BatchesStub

CALL_TIMEOUT_S = 30.0
GIVE_UP_S = 180.0  # for one call; longer than the store is away
RETRY_INTERVAL_S = 0.25
PART_BYTES = 1 << 20
RETRIED_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)

Result = TypeVar("Result")


class BatchCaller:
    """Open while `open_caller` is. Raises AioRpcError for an error that is not retried, or after `GIVE_UP_S`."""

    def __init__(self, stubs: Sequence[Any], api_key: str) -> None:
        self._stubs = itertools.cycle(stubs)
        self._metadata = (("authorization", f"Bearer {api_key}"),)

    async def upload(self, path: Path) -> str:
        """Return the id of the stored file."""
        response = await next(self._stubs).UploadFile(_parts_of(path), metadata=self._metadata)
        return str(response.file.id)

    async def create(self, file_id: str, endpoint: str) -> pb.Batch:
        request = pb.CreateBatchRequest(input_file_id=file_id, endpoint=endpoint, idempotency_key=uuid4().hex)
        response = await self._retried(
            lambda stub: stub.CreateBatch(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
        )
        batch: pb.Batch = response.batch
        return batch

    async def find(self, batch_id: str) -> pb.Batch:
        request = pb.GetBatchRequest(batch_id=batch_id)
        response = await self._retried(
            lambda stub: stub.GetBatch(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
        )
        batch: pb.Batch = response.batch
        return batch

    async def cancel(self, batch_id: str) -> pb.Batch:
        request = pb.CancelBatchRequest(batch_id=batch_id)
        response = await self._retried(
            lambda stub: stub.CancelBatch(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
        )
        batch: pb.Batch = response.batch
        return batch

    async def download(self, file_id: str, path: Path) -> None:
        """Write the content of a file, from where it was cut if an edge goes away meanwhile."""
        with path.open("wb") as file:

            async def read_on(stub: Any) -> None:
                request = pb.ReadFileRequest(file_id=file_id, offset=file.tell())
                async for part in stub.ReadFile(request, metadata=self._metadata):
                    file.write(part.content)

            await self._retried(read_on)

    async def _retried(self, call: Callable[[Any], Coroutine[Any, Any, Result]]) -> Result:
        give_up_at = time.monotonic() + GIVE_UP_S
        while True:
            try:
                return await call(next(self._stubs))
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRIED_CODES or time.monotonic() >= give_up_at:
                    raise
            await asyncio.sleep(RETRY_INTERVAL_S)


@asynccontextmanager
async def open_caller(addresses: Sequence[str], api_key: str) -> AsyncIterator[BatchCaller]:
    async with AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(channel(each)) for each in addresses]
        yield BatchCaller([BatchesStub(each) for each in channels], api_key)


def _parts_of(path: Path) -> Iterator[pb.UploadFileRequest]:
    yield pb.UploadFileRequest(header=pb.UploadHeader(filename=path.name, purpose=pb.FILE_PURPOSE_BATCH))
    with path.open("rb") as file:
        while content := file.read(PART_BYTES):
            yield pb.UploadFileRequest(content=content)
