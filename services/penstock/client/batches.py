"""Client of files and batches."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import grpc

from penstock.chassis.errors import DeadlineExceeded, Overloaded, PenstockError, Unavailable, error_from_rpc
from penstock.client.endpoints import Endpoint, Endpoints, Metadata
from penstock.v1 import batches_pb2 as pb
from penstock.v1.batches_pb2_grpc import BatchesStub

CALL_TIMEOUT_S = 30.0
RETRY_INTERVAL_S = 0.25  # unless the server says another time
MAX_RETRY_S = 10.0  # an error with a longer `retry_after` is raised
PART_BYTES = 1 << 20  # of one message
PAGE_SIZE = 100


class BatchesClient:
    """Calls `penstock.v1.Batches` for one caller, at each of the targets in turn.

    async with BatchesClient("127.0.0.1:8080", api_key=key) as batches:
        file = await batches.upload(Path("lines.jsonl"))
        batch = await batches.create(CreateBatchRequest(input_file_id=file.id, endpoint="/v1/chat/completions"))

    patience: s for which a call is repeated whose edge is away or has no room; an upload is made once. Every method
    raises PenstockError.
    """

    def __init__(
        self,
        *targets: str,
        api_key: str = "",
        credentials: grpc.ChannelCredentials | None = None,  # None for plaintext
        patience: float = 60.0,
    ) -> None:
        self._endpoints = Endpoints(targets, credentials)
        self._metadata: Metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._patience = patience

    async def __aenter__(self) -> Self:
        await self._endpoints.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._endpoints.close()

    async def upload(self, path: Path, on_sent: Callable[[int], None] = lambda _: None) -> pb.File:
        """Store a file. Calls `on_sent` with its bytes so far. Raises OSError if it cannot be read."""
        stub = _stub(self._endpoints.next())
        try:
            file: pb.File = (await stub.UploadFile(_parts_of(path, on_sent), metadata=self._metadata)).file
        except grpc.aio.AioRpcError as rpc:
            raise error_from_rpc(rpc) from None
        return file

    async def read(self, file_id: str) -> AsyncIterator[bytes]:
        """Yield the content of a file in parts. A read that is cut goes on where it was."""
        offset, failed_since = 0, 0.0
        while True:
            endpoint, began_at = self._endpoints.next(), time.monotonic()
            request = pb.ReadFileRequest(file_id=file_id, offset=offset)
            try:
                async for part in _stub(endpoint).ReadFile(request, metadata=self._metadata):
                    yield part.content
                    offset, failed_since = offset + len(part.content), 0.0
            except grpc.aio.AioRpcError as rpc:
                failed_since = failed_since or time.monotonic()
                await self._wait_to_repeat(endpoint, error_from_rpc(rpc), began_at, failed_since)
            else:
                return

    async def create(self, request: pb.CreateBatchRequest) -> pb.Batch:
        """Create a batch. Calls that are repeated create one, by the key of the request or by a new one."""
        keyed = pb.CreateBatchRequest(idempotency_key=uuid4().hex)
        keyed.MergeFrom(request)
        batch: pb.Batch = (await self._call("CreateBatch", keyed)).batch
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

    async def _call(self, method: str, request: Any) -> Any:
        first_at = time.monotonic()
        while True:
            endpoint, began_at = self._endpoints.next(), time.monotonic()
            try:
                call = getattr(_stub(endpoint), method)
                return await call(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as rpc:
                await self._wait_to_repeat(endpoint, error_from_rpc(rpc), began_at, first_at)

    async def _wait_to_repeat(
        self, endpoint: Endpoint, error: PenstockError, began_at: float, failing_since: float
    ) -> None:
        """Raises `error` unless the call may succeed later, and is to be repeated.

        began_at, failing_since: monotonic s of this call, and of the first one that failed.
        """
        if isinstance(error, Unavailable | DeadlineExceeded):
            self._endpoints.mark_failed(endpoint, began_at)
        delay = error.retry_after or RETRY_INTERVAL_S
        if (
            not isinstance(error, Unavailable | DeadlineExceeded | Overloaded)
            or delay > MAX_RETRY_S
            or time.monotonic() + delay > failing_since + self._patience
        ):
            raise error
        await asyncio.sleep(delay)


def _stub(endpoint: Endpoint) -> Any:
    return BatchesStub(endpoint.channel)


def _parts_of(path: Path, on_sent: Callable[[int], None]) -> Iterator[pb.UploadFileRequest]:
    yield pb.UploadFileRequest(header=pb.UploadHeader(filename=path.name, purpose=pb.FILE_PURPOSE_BATCH))
    sent = 0
    with path.open("rb") as file:
        while content := file.read(PART_BYTES):
            yield pb.UploadFileRequest(content=content)
            sent += len(content)
            on_sent(sent)
