"""The store for the event loop: each operation runs in a thread, and its contents are read and written beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from penstock.batch.blobs.blobs import Blobs, BlobUnavailable
from penstock.batch.jobs.batch import Batch, Status
from penstock.batch.jobs.chunks import ChunkKey, ChunkState, ClaimedChunk, Line, LineResult
from penstock.batch.jobs.division import FileDivision, LineTooLong, lines_in
from penstock.batch.store import statements as sql
from penstock.batch.store.errors import StoreUnavailable, check_size
from penstock.batch.store.operations import BatchOperations, Chunk, Job, StoredFile
from penstock.batch.store.statements import Transaction
from penstock.v1.batches_pb2 import FILE_PURPOSE_BATCH_OUTPUT

READ_BYTES = 1 << 20
RESULTS_PER_READ = 512  # rows of the output
JOB_LEASE_S = 30.0
EXPIRED_PER_SLICE = 100


class Database(Protocol):
    """Opens transactions, one or several at a time. Raises StoreUnavailable."""

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
        writer = await _in_thread(self.blobs.create, file.file_id)
        size = 0
        try:
            async for content in contents:
                size += len(content)
                check_size(size, self.max_file_bytes)
                await _in_thread(writer.write, content)
            await _in_thread(writer.commit)
        except BaseException:
            writer.abort()
            raise
        stored = file._replace(size_bytes=size)
        try:
            await self.run(self.operations.add_file, stored)
        except BaseException:
            with suppress(BlobUnavailable):
                self.blobs.delete(file.file_id)
            raise
        return stored

    async def read_file(self, file: StoredFile, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield the content of a file in parts."""
        while offset < file.size_bytes:
            part = await _in_thread(self.blobs.read, file.file_id, offset, READ_BYTES)
            if not part:
                raise StoreUnavailable(f"the content of {file.file_id} ends early")
            yield part
            offset += len(part)

    async def delete_file(self, tenant_id: str, file_id: str) -> None:
        await self.run(self.operations.delete_file, tenant_id, file_id)
        await _in_thread(self.blobs.delete, file_id)

    # Chunks.

    async def claim(self, replica: str, limit: int, lease_s: float) -> Sequence[ClaimedChunk]:
        del replica  # an epoch names the holder
        claimed: Sequence[ClaimedChunk] = await self.run(self.operations.claim, limit, lease_s)
        return claimed

    async def renew(self, held: Sequence[tuple[ChunkKey, int]], lease_s: float) -> Sequence[ChunkState]:
        states: Sequence[ChunkState] = await self.run(self.operations.renew, held, lease_s)
        return states

    async def read_lines(self, chunk: ClaimedChunk) -> Sequence[Line]:
        """Return the lines of a chunk without a result."""
        number, file_id, offset, length, done = await self.run(self._place, chunk)
        del number
        content = await _in_thread(self.blobs.read, file_id, offset, length)
        first = chunk.key.first_line
        lines = [Line(first + place, each) for place, each in enumerate(lines_in(content))]
        return [each for each in lines if each.number not in done]

    async def put_results(self, results: Sequence[LineResult]) -> Sequence[bool]:
        stored: Sequence[bool] = await self.run(self.operations.put_results, results)
        return stored

    async def release(self, held: Sequence[tuple[ChunkKey, int]]) -> None:
        await self.run(self.operations.release, held)

    def _place(self, transaction: Transaction, chunk: ClaimedChunk) -> tuple[int, str, int, int, set[int]]:
        for number, file_id, offset, length in transaction.run(sql.PLACE_OF_CHUNK, *chunk.key):
            done = self.operations.lines_done(transaction, number, chunk.key.first_line, chunk.line_count)
            return number, file_id, offset, length, done
        raise StoreUnavailable(f"chunk {chunk.key} is gone")

    # Jobs.

    async def run_job(self) -> bool:
        """Divide a file or write an output, if one is due. Return whether one was."""
        await self.run(self.operations.lapse)
        job: Job | None = await self.run(self.operations.claim_job, JOB_LEASE_S)
        if job is None:
            return False
        if job.batch.status == Status.VALIDATING:
            await self._divide(job)
        else:
            await self._write_output(job)
        return True

    async def _divide(self, job: Job) -> None:
        file: StoredFile = await self.run(self.operations.find_file, job.batch.tenant_id, job.batch.input_file_id)
        division = FileDivision()
        try:
            async for part in self.read_file(file):
                division.feed(part)
                await asyncio.sleep(0)
            division.finish()
        except LineTooLong as error:
            await self.run(self.operations.fail, job, "LINE_TOO_LONG", str(error))
            return
        if not division.lines:
            await self.run(self.operations.fail, job, "FILE_EMPTY", "the file has no line")
            return
        await self.run(self.operations.divide, job, [Chunk(*each) for each in division.chunks], division.lines)

    async def _write_output(self, job: Job) -> None:
        """Write the answers and the errors in the order of their lines, and end the batch."""
        output, errors = [await self._write(job, is_error=each) for each in (False, True)]
        if not await self.run(self.operations.finish, job, output, errors):
            for each in filter(None, (output, errors)):
                await _in_thread(self.blobs.delete, each.file_id)

    async def _write(self, job: Job, *, is_error: bool) -> StoredFile | None:
        """Return the row of a file with the answers or the errors; None if there are none."""
        batch, last, size = job.batch, -1, 0
        rows = await self.run(_results, batch, last, is_error)
        if not rows:
            return None
        file_id = new_file_id()
        writer = await _in_thread(self.blobs.create, file_id)
        try:
            while rows:
                content = b"".join(bytes(each) + b"\n" for _, each in rows)
                await _in_thread(writer.write, content)
                size, last = size + len(content), rows[-1][0]
                await self.run(self.operations.renew_job, job, JOB_LEASE_S)
                rows = await self.run(_results, batch, last, is_error)
            await _in_thread(writer.commit)
        except BaseException:
            writer.abort()
            raise
        name, now = f"{batch.batch_id}_{'error' if is_error else 'output'}.jsonl", self.clock()
        kept_until = now + batch.output_ttl
        return StoredFile(file_id, batch.tenant_id, name, FILE_PURPOSE_BATCH_OUTPUT, size, now, kept_until)

    async def run_upkeep(self) -> None:
        """Delete expired files."""
        for file_id in await self.run(self.operations.drop_expired_files, EXPIRED_PER_SLICE):
            await _in_thread(self.blobs.delete, file_id)


def _results(transaction: Transaction, batch: Batch, after: int, is_error: bool) -> list[tuple[int, bytes]]:
    rows = transaction.run(sql.READ_RESULTS, batch.number, after, int(is_error), RESULTS_PER_READ)
    return [(row[0], row[1]) for row in rows]


async def _in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return await asyncio.to_thread(work, *arguments)
    except BlobUnavailable as error:
        raise StoreUnavailable(str(error)) from error
