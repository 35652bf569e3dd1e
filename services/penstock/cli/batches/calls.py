"""Calls of `penstock.v1.Batches` for one caller. Every method raises PenstockError."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc

from penstock.bench.progress import ProgressFn
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.v1 import batches_pb2 as pb
from penstock.v1.batches_pb2_grpc import BatchesStub

CALL_TIMEOUT_S = 30.0
PART_BYTES = 1 << 20  # of one message
PAGE_SIZE = 100


class BatchCalls:
    """Open while `open_calls` is."""

    def __init__(self, stub: Any, api_key: str) -> None:
        self._stub = stub
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()

    async def upload(self, path: Path, report: ProgressFn) -> pb.File:
        """Store a file. Raises OSError if it cannot be read."""
        with _errors():
            call = self._stub.UploadFile(_parts_of(path, report), metadata=self._metadata)
            stored: pb.File = (await call).file
        return stored

    async def create(self, request: pb.CreateBatchRequest) -> pb.Batch:
        batch: pb.Batch = (await self._call("CreateBatch", request)).batch
        return batch

    async def find(self, batch_id: str) -> pb.Batch:
        batch: pb.Batch = (await self._call("GetBatch", pb.GetBatchRequest(batch_id=batch_id))).batch
        return batch

    async def cancel(self, batch_id: str) -> pb.Batch:
        batch: pb.Batch = (await self._call("CancelBatch", pb.CancelBatchRequest(batch_id=batch_id))).batch
        return batch

    async def list(self, limit: int) -> list[pb.Batch]:
        """Return the newest batches, at most `limit`."""
        found: list[pb.Batch] = []
        while len(found) < limit:
            after = found[-1].id if found else ""
            size = min(PAGE_SIZE, limit - len(found))
            page = await self._call("ListBatches", pb.ListBatchesRequest(page_size=size, after=after))
            found += page.batches
            if not page.has_more:
                break
        return found

    async def read(self, file_id: str, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the content of a file in parts."""
        with _errors():
            request = pb.ReadFileRequest(file_id=file_id, offset=offset)
            async for part in self._stub.ReadFile(request, metadata=self._metadata):
                yield part.content

    async def _call(self, method: str, request: Any) -> Any:
        with _errors():
            return await getattr(self._stub, method)(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)


@asynccontextmanager
async def open_calls(target: str, api_key: str) -> AsyncIterator[BatchCalls]:
    """Call the edge or Envoy at `target`, host:port."""
    async with channel(target) as to_edge:
        yield BatchCalls(BatchesStub(to_edge), api_key)


@contextmanager
def _errors() -> Iterator[None]:
    """Raise the error of a call as PenstockError."""
    try:
        yield
    except grpc.aio.AioRpcError as rpc:
        raise error_from_rpc(rpc) from None


def _parts_of(path: Path, report: ProgressFn) -> Iterator[pb.UploadFileRequest]:
    header = pb.UploadHeader(filename=path.name, purpose=pb.FILE_PURPOSE_BATCH)
    yield pb.UploadFileRequest(header=header)
    size, sent = max(1, path.stat().st_size), 0
    with path.open("rb") as file:
        while content := file.read(PART_BYTES):
            yield pb.UploadFileRequest(content=content)
            sent += len(content)
            report(f"uploading {path.name}: {sent / size:.0%} of {size / 1e6:,.1f} MB")
