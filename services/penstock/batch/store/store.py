"""The store for the event loop: each operation runs in a thread, and its contents are read and written beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from penstock.batch.blobs.blobs import Blobs, BlobUnavailable, BlobWriter
from penstock.batch.jobs.batch import Batch
from penstock.batch.jobs.chunks import ChunkKey, ChunkState, Claim, ClaimedChunk, Line, LineResult
from penstock.batch.jobs.division import lines_in
from penstock.batch.store import statements as sql
from penstock.batch.store.errors import StoreUnavailable, check_size, is_undone
from penstock.batch.store.operations import BatchOperations, StoredFile
from penstock.batch.work_signal import WorkSignal
from penstock.chassis.database.statements import Transaction

READ_BYTES = 1 << 20
RESERVED_BYTES = 256 << 20  # of a volume, which uploads leave to results and outputs


class Database(Protocol):
    """Opens transactions, one or several at a time. Raises StoreUnavailable."""

    def open(self) -> None:
        """Migrate the database. Raises StoreUnusable and StoreTooNew."""

    def transaction(self) -> AbstractContextManager[Transaction]: ...

    def close(self) -> None: ...


def new_file_id() -> str:
    return f"file-{uuid4().hex}"


@dataclass(frozen=True, slots=True)
class BatchStore:
    """Files, batches, chunks and results. Every method raises the errors of the operations, and StoreUnavailable."""

    database: Database
    blobs: Blobs
    operations: BatchOperations
    clock: Callable[[], float]
    max_file_bytes: int
    jobs_due: WorkSignal = field(default_factory=WorkSignal, kw_only=True)  # a batch may have a job
    chunks_due: WorkSignal = field(default_factory=WorkSignal, kw_only=True)  # chunks may be claimed

    async def run(self, operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run one operation in a transaction of its own."""

        def perform() -> Any:
            with self.database.transaction() as transaction:
                return operation(transaction, *arguments, **named)

        return await asyncio.to_thread(perform)

    # Contents.

    async def add_file(self, file: StoredFile, contents: AsyncIterator[bytes]) -> StoredFile:
        """Store a file, whose size is that of `contents`. Raises FilesFull before it is too large."""
        await self.run(self.operations.check_room, file.tenant_id, 0)
        writer = await self.begin_content(file.file_id)
        size = 0
        try:
            async for content in contents:
                size += len(content)
                check_size(size, self.max_file_bytes)
                await in_thread(self._write_upload, writer, content)
            await in_thread(writer.commit)
        except BaseException:
            await asyncio.to_thread(writer.abort)
            raise
        stored = file._replace(size_bytes=size)
        try:
            await self.run(self.operations.add_file, stored)
        except BaseException as error:
            if is_undone(error):  # else the upkeep deletes the content, if no file has it
                with suppress(BlobUnavailable):
                    await asyncio.to_thread(self.blobs.delete, file.file_id)
            raise
        return stored

    async def begin_content(self, name: str) -> BlobWriter:
        """Return the writer of a new content. If the caller is cancelled meanwhile, the writer is aborted."""
        beginning: asyncio.Future[BlobWriter] = asyncio.ensure_future(in_thread(self.blobs.create, name))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            with suppress(StoreUnavailable):
                await asyncio.to_thread((await beginning).abort)
            raise

    def _write_upload(self, writer: BlobWriter, content: bytes) -> None:
        free = self.blobs.free_bytes()
        if free < RESERVED_BYTES:
            text = f"its volume has {free:.0f} bytes left, which are kept for results; delete files, or enlarge it"
            raise BlobUnavailable(text)
        writer.write(content)

    async def read_file(self, file: StoredFile, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the content of a file in parts."""
        while offset < file.size_bytes:
            part = await in_thread(self.blobs.read, file.file_id, offset, READ_BYTES)
            if not part:
                raise StoreUnavailable(f"the content of {file.file_id} ends early")
            yield part
            offset += len(part)

    async def delete_file(self, tenant_id: str, file_id: str) -> None:
        await self.run(self.operations.delete_file, tenant_id, file_id)
        await in_thread(self.blobs.delete, file_id)

    # Batches.

    async def create(self, batch: Batch, idempotency_key: str = "") -> Batch:
        created: Batch = await self.run(self.operations.create, batch, idempotency_key)
        self.jobs_due.set()
        return created

    async def cancel(self, tenant_id: str, batch_id: str) -> Batch:
        batch: Batch = await self.run(self.operations.cancel, tenant_id, batch_id)
        self.jobs_due.set()
        return batch

    # Chunks.

    async def claim(self, replica: str, limit: int, lease_s: float) -> Claim:
        del replica  # an epoch names the holder
        claimed: Claim = await self.run(self.operations.claim, limit, lease_s)
        return claimed

    async def renew(self, held: Sequence[tuple[ChunkKey, int]], lease_s: float) -> Sequence[ChunkState]:
        states: Sequence[ChunkState] = await self.run(self.operations.renew, held, lease_s)
        return states

    async def read_lines(self, chunk: ClaimedChunk) -> Sequence[Line]:
        """Return the lines of a chunk without a result."""
        file_id, offset, length, done = await self.run(self._place, chunk)
        content = await in_thread(self.blobs.read, file_id, offset, length)
        first = chunk.key.first_line
        lines = [Line(first + place, each) for place, each in enumerate(lines_in(content))]
        return [each for each in lines if each.number not in done]

    async def put_results(self, results: Sequence[LineResult]) -> Sequence[bool]:
        stored: Sequence[bool] = await self.run(self.operations.put_results, results)
        return stored

    async def release(self, held: Sequence[tuple[ChunkKey, int]]) -> None:
        if await self.run(self.operations.release, held):
            self.jobs_due.set()

    def _place(self, transaction: Transaction, chunk: ClaimedChunk) -> tuple[str, int, int, set[int]]:
        for number, file_id, offset, length in transaction.run(sql.PLACE_OF_CHUNK, *chunk.key):
            done = self.operations.lines_done(transaction, number, chunk.key.first_line, chunk.line_count)
            return file_id, offset, length, done
        raise StoreUnavailable(f"chunk {chunk.key} is gone")


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return await asyncio.to_thread(work, *arguments)
    except BlobUnavailable as error:
        raise StoreUnavailable(str(error)) from error
